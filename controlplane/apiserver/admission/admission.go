// Package admission is the contract of admission: the attributes of one write,
// what a plugin is, and the chain that runs plugins in order. The handlers of
// writes fill in the attributes, and plugin, webhook and policy decide by them;
// neither of the two sides imports the other. It writes warnings and audit
// annotations into the request, and reads nothing but what it is given.
package admission

import "context"

// Interface decides about writes. Admit may change a.Object; Validate, which
// sees what will be stored, may not.
type Interface interface {
	Admit(ctx context.Context, a *Attributes) error
	Validate(ctx context.Context, a *Attributes) error
}

// A Plugin is one rule; it is a Mutator, a Validator, or both.
type Plugin interface{ Name() string }

// A Mutator may change the incoming object, or refuse it.
type Mutator interface {
	Plugin
	Admit(ctx context.Context, a *Attributes) error
}

// A Validator sees the final object and may refuse it.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}
