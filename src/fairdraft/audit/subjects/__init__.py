"""What an audit can judge: each subject turns a decoder into scored tokens."""
