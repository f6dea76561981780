package admission

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"knarr/controlplane/apiserver/metrics"
)

// A Chain runs plugins in order.
type Chain struct {
	mutators   []counted[Mutator]
	validators []counted[Validator]
	closers    []closer

	admitted, validated *metrics.Step
}

// counted is a plugin and where its answers are counted.
type counted[T Plugin] struct {
	plugin T
	step   *metrics.Step
}

// A closer holds connections.
type closer interface{ Close() }

// NewChain sorts plugins by what they do. Their answers are counted, unless
// counts is nil.
func NewChain(plugins []Plugin, counts *metrics.Admission) *Chain {
	c := &Chain{admitted: counts.Step("", metrics.Admit), validated: counts.Step("", metrics.Validate)}
	for _, p := range plugins {
		if m, ok := p.(Mutator); ok {
			c.mutators = append(c.mutators, counted[Mutator]{m, counts.Step(p.Name(), metrics.Admit)})
		}
		if v, ok := p.(Validator); ok {
			c.validators = append(c.validators, counted[Validator]{v, counts.Step(p.Name(), metrics.Validate)})
		}
		if p, ok := p.(closer); ok {
			c.closers = append(c.closers, p)
		}
	}
	return c
}

// Close ends the plugins' idle connections.
func (c *Chain) Close() {
	for _, p := range c.closers {
		p.Close()
	}
}

// Admit lets every mutator see the object, and once more if one of them asks.
func (c *Chain) Admit(ctx context.Context, a *Attributes) error {
	obj, _ := a.Object.(metav1.Object)
	var managed []metav1.ManagedFieldsEntry
	if obj != nil {
		managed = obj.GetManagedFields()
	}
	if err := c.admit(ctx, a); err != nil || !a.Again {
		return err
	}
	a.Round = 1
	if err := c.admit(ctx, a); err != nil || obj == nil {
		return err
	}
	// Whoever changed the object may have spoilt what is not his.
	if err := managedfields.ValidateManagedFields(obj.GetManagedFields()); err != nil {
		obj.SetManagedFields(managed)
		a.Warn(ctx, fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v", err))
	}
	return nil
}

func (c *Chain) admit(ctx context.Context, a *Attributes) error {
	began := time.Now()
	last := began
	for _, m := range c.mutators {
		err := m.plugin.Admit(ctx, a)
		now := time.Now()
		m.step.ObserveAnswer(string(a.Operation), err != nil, now.Sub(last))
		if last = now; err != nil {
			c.admitted.ObserveAnswer(string(a.Operation), true, now.Sub(began))
			return err
		}
	}
	c.admitted.ObserveAnswer(string(a.Operation), false, last.Sub(began))
	return nil
}

// Validate lets every validator see the object.
func (c *Chain) Validate(ctx context.Context, a *Attributes) error {
	began := time.Now()
	last := began
	for _, v := range c.validators {
		err := v.plugin.Validate(ctx, a)
		now := time.Now()
		v.step.ObserveAnswer(string(a.Operation), err != nil, now.Sub(last))
		if last = now; err != nil {
			c.validated.ObserveAnswer(string(a.Operation), true, now.Sub(began))
			return err
		}
	}
	c.validated.ObserveAnswer(string(a.Operation), false, last.Sub(began))
	return nil
}
