package plugin

import (
	"context"
	"errors"

	"knarr/controlplane/apiserver/admission"
)

// alwaysDeny refuses every write.
type alwaysDeny struct{}

var errAllDenied = errors.New("admission control is denying all modifications")

func (alwaysDeny) Name() string { return "AlwaysDeny" }

func (alwaysDeny) Admit(_ context.Context, a *admission.Attributes) error {
	return forbidden(a, errAllDenied)
}

func (alwaysDeny) Validate(_ context.Context, a *admission.Attributes) error {
	return forbidden(a, errAllDenied)
}
