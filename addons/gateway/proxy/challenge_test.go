package proxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"knarr/addons/gateway/route"
)

// Challenges are answered for the hosts that want certificates, before any redirect, and
// nothing else is.
func TestChallenges(t *testing.T) {
	p := New(Config{})
	redirect := route.Rule{Filters: route.Filters{Redirect: &route.Redirect{Scheme: "https", OnlyPlain: true}}}
	l := route.Listener{Name: "http", Protocol: route.HTTP, Port: 80, PublicPort: 80, Challenge: "thumb", ChallengeHosts: []string{"a.org"},
		Routes: []*route.Route{{Name: "Ingress n/a", Hosts: []string{"a.org", "b.org"}, Rules: []route.Rule{redirect}}}}
	c := p.Compile(&route.Config{Listeners: []route.Listener{l}})
	port := p.NewPort(false)
	port.Set([]*Site{c.Sites["http"]})
	for _, test := range []struct {
		method, url string
		status      int
		body        string
	}{
		{"GET", "http://a.org/.well-known/acme-challenge/to-ken_1", 200, "to-ken_1.thumb"},
		{"HEAD", "http://a.org/.well-known/acme-challenge/token", 200, ""},
		{"GET", "http://A.org:80/.well-known//acme-challenge/x/../token", 200, "token.thumb"},
		{"GET", "http://b.org/.well-known/acme-challenge/token", 302, ""},
		{"POST", "http://a.org/.well-known/acme-challenge/token", 302, ""},
		{"GET", "http://a.org/.well-known/acme-challenge/", 302, ""},
		{"GET", "http://a.org/.well-known/acme-challenge/a/b", 302, ""},
		{"GET", "http://a.org/.well-known/acme-challenge/%3Cscript%3E", 302, ""},
		{"GET", "http://a.org/.well-known/acme-challenge/" + strings.Repeat("a", maxToken+1), 302, ""},
		{"GET", "http://a.org/", 302, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(test.method, test.url, nil)
		r.RequestURI = strings.TrimPrefix(strings.TrimPrefix(test.url, "http://a.org"), "http://b.org")
		if strings.HasPrefix(r.RequestURI, "http") {
			r.RequestURI = strings.TrimPrefix(r.RequestURI, "http://A.org:80")
		}
		port.ServeHTTP(w, r)
		if w.Code != test.status || test.status == http.StatusOK && w.Body.String() != test.body {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.url, w.Code, w.Body, test.status, test.body)
		}
	}
}
