package request

import (
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Params reads typed query parameters and keeps the first fault.
type Params struct {
	url.Values
	Err error // the first fault
}

// Int64 is a number, nil where it is left out.
func (p *Params) Int64(key string) *int64 {
	s := p.Get(key)
	if s == "" {
		return nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && p.Err == nil {
		p.Err = apierrors.NewBadRequest(err.Error())
	}
	return &n
}

// Bool reads as upstream does: there, and neither "false" nor "0".
func (p *Params) Bool(key string) *bool {
	v, ok := p.Values[key]
	if !ok || len(v) == 0 {
		return nil
	}
	switch strings.ToLower(v[0]) {
	case "false", "0":
		return new(false)
	}
	return new(true)
}

// Is says that the parameter is true.
func (p *Params) Is(key string) bool {
	b := p.Bool(key)
	return b != nil && *b
}
