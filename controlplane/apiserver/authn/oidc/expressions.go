package oidc

import (
	"encoding/json"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel"
)

// claimsValue is the claims as expressions see them. The payload was read
// before, so every claim is JSON.
func claimsValue(c claims) traits.Mapper {
	m := make(map[string]any, len(c))
	for name, raw := range c {
		var v any
		if json.Unmarshal(raw, &v) == nil {
			m[name] = v
		}
	}
	return mapValue(m)
}

// userValue is the user as expressions see him.
func userValue(u *user.DefaultInfo) traits.Mapper {
	return mapValue(map[string]any{"username": u.Name, "uid": u.UID, "groups": u.Groups, "extra": u.Extra})
}

func mapValue(m map[string]any) traits.Mapper {
	return &fields{types.DefaultTypeAdapter.NativeToValue(m).(traits.Mapper)}
}

// fields is a map whose keys may be written as upstream escapes what is no
// identifier: claims.foo__dot__bar.
type fields struct{ traits.Mapper }

func (f *fields) Find(key ref.Val) (ref.Val, bool) {
	if s, ok := key.(types.String); ok {
		if plain, ok := cel.Unescape(string(s)); ok && plain != string(s) {
			key = types.String(plain)
		}
	}
	v, ok := f.Mapper.Find(key)
	return nested(v), ok
}

// Get is what indexing uses.
func (f *fields) Get(key ref.Val) ref.Val {
	if v, ok := f.Find(key); ok {
		return v
	}
	return f.Mapper.Get(key)
}

// Contains is what has() uses.
func (f *fields) Contains(key ref.Val) ref.Val {
	_, ok := f.Find(key)
	return types.Bool(ok)
}

type items struct{ traits.Lister }

func (i *items) Get(index ref.Val) ref.Val { return nested(i.Lister.Get(index)) }

// nested are maps at any depth.
func nested(v ref.Val) ref.Val {
	switch v := v.(type) {
	case *fields, *items:
		return v
	case traits.Mapper:
		return &fields{v}
	case traits.Lister:
		return &items{v}
	}
	return v
}
