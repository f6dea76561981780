package gateway

import (
	"context"
	"fmt"

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

// A refusedOrder is what an event of an object says of a certificate that is not ordered.
type refusedOrder struct {
	of   types.UID
	text string
}

// order hands over what is wanted. What is not ordered, and that there is no authority, it
// says once.
func (t *statusTerm) order(all []ingress.Order) {
	refused := map[refusedOrder]bool{}
	refuse := func(o *ingress.Order, text string) {
		r := refusedOrder{o.Owner.GetUID(), text}
		if !refused[r] && !t.refused[r] {
			t.events.Event(o.Owner, corev1.EventTypeWarning, "CertificateRefused", text)
		}
		refused[r] = true
	}
	var wants []acme.Want
	for i := range all {
		o := &all[i]
		if t.issuer == nil {
			refuse(o, fmt.Sprintf("Annotation %s is not followed: no authority is configured; start the servers with --acme-email or --acme-directory", references.ACMEAnnotation))
			continue
		}
		for _, fault := range o.Faults[:min(len(o.Faults), maxFaults)] {
			refuse(o, fmt.Sprintf("Annotation %s: %s", references.ACMEAnnotation, fault))
		}
		if len(o.Hosts) > 0 || len(o.Faults) == 0 {
			wants = append(wants, acme.Want{Secret: o.Secret, Hosts: o.Hosts, Owner: o.Owner, Have: t.secret(o.Secret)})
		}
	}
	t.refused = refused
	if t.issuer != nil {
		t.issuer.Want(wants)
	}
}

// maxFaults bounds the events about one Secret.
const maxFaults = 20
