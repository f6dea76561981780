package proxy

import (
	"net/http"
	"strings"
	"testing"

	"knarr/addons/gateway/route"
)

// TestConnectionNames: a client's Connection takes its own headers away, and not what the
// gateway says of it.
func TestConnectionNames(t *testing.T) {
	f := newFixture(t)
	f.serve("auth", route.Backend{}, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Auth-User", "me") })
	f.serve("b", route.Backend{}, show("X-Forwarded-For", "X-Real-Ip", "X-Auth-User", "X-Set", "X-Own", "Te", "Connection"))
	filters := route.Filters{
		Auth:           &route.Auth{URL: "http://auth.example/", Backend: "auth", ResponseHeaders: []string{"X-Auth-User"}},
		RequestHeaders: &route.Headers{Set: []route.Header{{Name: "X-Set", Value: "yes"}}},
	}
	f.rules(route.Listener{}, rule("/", filters, "b"),
		rule("/sets", route.Filters{RequestHeaders: &route.Headers{Set: []route.Header{{Name: "Connection", Value: "X-Real-Ip"}}}}, "b"))
	for target, want := range map[string]string{
		"/":     "X-Forwarded-For=127.0.0.1 X-Real-Ip=127.0.0.1 X-Auth-User=me X-Set=yes X-Own= Te=trailers Connection=",
		"/sets": "X-Forwarded-For=127.0.0.1 X-Real-Ip=127.0.0.1 X-Auth-User= X-Set= X-Own= Te=trailers Connection=",
	} {
		_, body := f.get(target, "Connection: X-Forwarded-For, X-Real-Ip, X-Auth-User, X-Set, X-Own, te", "X-Own: a", "Te: trailers")
		if !strings.HasSuffix(body, want) {
			t.Errorf("%q, want %q", body, want)
		}
	}
}

// TestUnderscores: a name that a backend takes for one of the gateway's does not reach it.
func TestUnderscores(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, show("X_Real_Ip", "X_forwarded-For", "X-Real-Ip", "X-Own"))
	f.rules(route.Listener{}, rule("/", route.Filters{}, "b"))
	_, body := f.get("/", "X_Real_Ip: 1.2.3.4", "x_forwarded-for: 1.2.3.4", "X-Own: a_b", "Content_Length: 3")
	if want := "X_Real_Ip= X_forwarded-For= X-Real-Ip=127.0.0.1 X-Own=a_b"; !strings.HasSuffix(body, want) {
		t.Errorf("%q, want %q", body, want)
	}
}
