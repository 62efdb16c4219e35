"""Recipe of the embedded models: corpus, tokenizer, target, distilled draft, evaluation."""
