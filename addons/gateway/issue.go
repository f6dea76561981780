package gateway

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/acme"
	"knarr/addons/gateway/ingress"
	"knarr/internal/references"
	"knarr/internal/run"
)

// issue begins to get certificates, if there is an authority, until ctx ends. What it
// returns waits for the end.
func (t *statusTerm) issue(ctx context.Context) (wait func()) {
	secrets := acme.Secrets{Client: t.Status.client}
	authority := t.authority
	if authority == nil && t.cfg.ACME != nil {
		authority = acme.Open(*t.cfg.ACME, secrets)
	}
	if authority == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	t.issuer = acme.NewIssuer(acme.Settings{
		Authority: authority, Keeper: secrets, Private: t.cfg.ACME.Private(),
		Event:   func(of runtime.Object, kind, reason, text string) { t.events.Event(of, kind, reason, text) },
		Changed: func() { t.world.add(everything) },
	})
	var group run.Group
	group.Loop(ctx, "gateway: get certificates", t.issuer.Run)
	return func() { cancel(); group.Wait() }
}

// thumbprint is that of the account at the authority, empty until there is one.
func (t *statusTerm) thumbprint() string {
	if t.issuer == nil {
		return ""
	}
	return t.issuer.Thumbprint()
}

// order hands over what is wanted. Without an authority it says so, once.
func (t *statusTerm) order(all []ingress.Order) {
	if t.issuer == nil {
		refused := make(map[types.UID]bool, len(all))
		for _, o := range all {
			if uid := o.Ingress.UID; !refused[uid] && !t.refused[uid] {
				t.events.Eventf(o.Ingress, corev1.EventTypeWarning, "CertificateRefused",
					"Annotation %s is not followed: no authority is configured; start the servers with --acme-email or --acme-directory", references.ACMEAnnotation)
			}
			refused[o.Ingress.UID] = true
		}
		t.refused = refused
		return
	}
	wants := make([]acme.Want, len(all))
	for i, o := range all {
		wants[i] = acme.Want{Secret: o.Secret, Hosts: o.Hosts, Owner: o.Ingress, Have: t.secret(o.Secret)}
	}
	t.issuer.Want(wants)
}
