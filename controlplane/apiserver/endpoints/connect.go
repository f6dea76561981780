package endpoints

// connects are subresources that relay to elsewhere.
var connects map[string]func(*call) error
