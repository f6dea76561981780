package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"reflect"
	"testing"
	"time"

	"knarr/addons/gateway/route"
)

// What has not changed stays the very same from one Config to the next, two listeners of the
// same routes have one table, and a backend that has changed is led to at once.
func TestNextConfig(t *testing.T) {
	p := New(Config{})
	defer p.Close()
	routes := []*route.Route{
		{Name: "a", Hosts: []string{"a.example"}, Rules: []route.Rule{{Backends: []route.Share{{Backend: "a", Weight: 1}}, Filters: route.Filters{Limit: &route.Limit{Rate: 1, Burst: 1}}}}},
		{Name: "b", Hosts: []string{"b.example"}, Rules: []route.Rule{{Backends: []route.Share{{Backend: "b", Weight: 1}}, Filters: route.Filters{Mirrors: []route.Mirror{{Backend: "a"}}}}}},
		{Name: "c", Hosts: []string{"c.example"}, Rules: []route.Rule{{Backends: []route.Share{{Backend: "b", Weight: 1}}}}},
	}
	backends := map[string]route.Backend{"a": {}, "b": {}}
	compile := func() (c *Compiled, actions map[string]*action) {
		c = p.Compile(&route.Config{Backends: backends, Listeners: []route.Listener{{Name: "http", Protocol: route.HTTP, Routes: routes}, {Name: "https", Protocol: route.HTTPS, Routes: routes}}})
		c.Release()
		actions = map[string]*action{}
		for _, name := range []string{"a", "b", "c"} {
			actions[name] = c.Sites["http"].table.Match(&route.Request{Host: name + ".example", Path: "/"}).Action
		}
		return c, actions
	}
	first, before := compile()
	if first.Sites["http"].table != first.Sites["https"].table {
		t.Error("two listeners of the same routes have two tables")
	}
	limiter := before["a"].filters.limiter
	for range 2 {
		if _, now := compile(); now["a"] != before["a"] || now["b"] != before["b"] || now["c"] != before["c"] {
			t.Error("what has not changed was made anew")
		}
	}
	backends = map[string]route.Backend{"a": {ReadTimeout: time.Second}, "b": {}}
	after, now := compile()
	if now["a"].shares[0].upstream != after.Upstreams["a"] || now["b"].filters.mirrors[0].upstream != after.Upstreams["a"] {
		t.Error("a backend that has changed is not led to")
	}
	if now["c"] != before["c"] {
		t.Error("a route that does not lead to it was made anew")
	}
	if now["a"].filters.limiter != limiter {
		t.Error("clients are counted anew")
	}
}

// Backends are the same only if everything of them is.
func TestSameBackend(t *testing.T) {
	of := reflect.TypeFor[route.Backend]()
	for i := range of.NumField() {
		var a, b route.Backend
		f := reflect.ValueOf(&b).Elem().Field(i)
		switch f.Interface().(type) {
		case *x509.CertPool:
			f.Set(reflect.ValueOf(x509.NewCertPool()))
		case *tls.Certificate:
			f.Set(reflect.ValueOf(&tls.Certificate{}))
		case []string:
			f.Set(reflect.ValueOf([]string{"x"}))
		default:
			switch f.Kind() {
			case reflect.String:
				f.SetString("x")
			case reflect.Bool:
				f.SetBool(true)
			default:
				f.SetInt(7)
			}
		}
		if !sameBackend(&a, &a) || sameBackend(&a, &b) {
			t.Errorf("%s makes no difference", of.Field(i).Name)
		}
	}
}
