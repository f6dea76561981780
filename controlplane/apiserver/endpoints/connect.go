package endpoints

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/connect"
)

// connect serves a subresource that opens a connection to elsewhere.
func (c *call) connect() error {
	err := c.s.connect.Serve(c.w, c.r, c.info, (*caller)(c))
	if errors.Is(err, connect.ErrMethod) {
		return c.notAllowed()
	}
	return err
}

// A caller is a call as the connection that it opens sees it.
type caller call

// Admit asks admission about the options of the connection.
func (c *caller) Admit(opts runtime.Object) error {
	attrs := (*call)(c).attributes(admission.Connect, nil, false)
	attrs.Verb, attrs.Object = "connect", opts
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return err
	}
	return c.s.cfg.Admission.Validate(c.ctx, attrs)
}

// Get is the object of that name, which the request's may be a part of.
func (c *caller) Get(name string) (runtime.Object, error) {
	rec, err := c.store.Get(c.ctx, c.keyOf(c.info.Namespace, name), "")
	if err != nil {
		return nil, c.fromCache(err, name)
	}
	return rec.Object()
}
