package definition

import (
	"errors"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// A scope is a schema as rules see it: the types they are compiled with, and
// how many values there may be at most. A nil scope has no rules. Types are made
// once per branch that has rules, and taken from the parent's where possible.
type scope struct {
	parent   *scope
	schema   *props
	times    *uint64 // nil: no bound
	from     func(*typeInfo) *typeInfo
	hasRules bool // here or above

	done bool
	info *typeInfo
	err  error
}

type typeInfo struct {
	schema *schema.Structural
	decl   *apiservercel.DeclType
}

func (c *costs) root(s *props) *scope {
	if c == nil {
		return nil
	}
	return &scope{schema: s, times: new(uint64(1)), hasRules: len(s.XValidations) > 0}
}

func (p *scope) child(s *props, from func(*typeInfo) *typeInfo) *scope {
	if p == nil || s == nil {
		return nil
	}
	c := &scope{parent: p, schema: s, from: from, hasRules: p.hasRules || len(s.XValidations) > 0}
	if n := elements(p.schema); p.times != nil && n != nil {
		c.times = new(product(*p.times, *n))
	}
	return c
}

// elements is how many values of one part a value may have; nil: no bound.
func elements(s *props) *uint64 {
	atMost := func(n *int64) *uint64 {
		if n == nil {
			return nil
		}
		return new(uint64(max(*n, 0)))
	}
	switch {
	case s.Type == "object" && s.AdditionalProperties != nil:
		return atMost(s.MaxProperties)
	case s.Type == "array":
		return atMost(s.MaxItems)
	}
	return new(uint64(1))
}

func (p *scope) property(s *props, name string) *scope {
	return p.child(s, func(t *typeInfo) *typeInfo {
		part, ok := t.schema.Properties[name]
		if !ok {
			return nil
		}
		escaped, ok := apiservercel.Escape(name)
		if !ok {
			return nil
		}
		f, ok := t.decl.Fields[escaped]
		if !ok {
			return nil
		}
		return &typeInfo{&part, f.Type}
	})
}

func (p *scope) items(s *props) *scope {
	return p.child(s, func(t *typeInfo) *typeInfo {
		if t.schema.Items == nil {
			return nil
		}
		return &typeInfo{t.schema.Items, t.decl.ElemType}
	})
}

func (p *scope) values(s *props) *scope {
	return p.child(s, func(t *typeInfo) *typeInfo {
		if t.schema.AdditionalProperties == nil {
			return nil
		}
		return &typeInfo{t.schema.AdditionalProperties.Structural, t.decl.ElemType}
	})
}

// types are what rules here are compiled with.
func (p *scope) types() (*typeInfo, error) {
	if !p.done {
		p.done = true
		p.info, p.err = p.makeTypes()
	}
	return p.info, p.err
}

func (p *scope) makeTypes() (*typeInfo, error) {
	if p.parent != nil && p.parent.hasRules {
		above, err := p.parent.types()
		if err != nil {
			return nil, err
		}
		if t := p.from(above); t != nil {
			return t, nil
		}
	}
	ss, err := schema.NewStructural(p.schema)
	if err != nil {
		return nil, err
	}
	decl := model.SchemaDeclType(ss, p.parent == nil || p.schema.XEmbeddedResource)
	if decl == nil {
		return nil, errors.New("unable to convert structural schema to CEL declarations")
	}
	return &typeInfo{ss, decl}, nil
}
