package dataplane

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"knarr/addons/gateway/route"
)

// An endpoint that fails in a row rests, one that is not there costs no client anything, and
// one that comes new gets its part from the beginning.
func TestHealthOnTheWire(t *testing.T) {
	f := newPlane(t, Options{})
	answer := func(code int, text string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, text)
		}))
		t.Cleanup(s.Close)
		return s
	}
	good, well, ill, gone := answer(200, "good"), answer(200, "good"), answer(500, "ill"), answer(200, "gone")
	gone.Close()
	c := one("http", 80, "b")
	f.apply(c)
	ask := func(n int) map[string]int {
		got := map[string]int{}
		for range n {
			_, body := f.send(80, "GET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
			got[body]++
		}
		return got
	}
	f.SetEndpoints("b", []route.Endpoint{to(good.URL), to(well.URL), to(ill.URL), to(gone.URL)})
	got := ask(300)
	if got["ill"] == 0 || got["ill"] > 60 || got["good"]+got["ill"] != 300 {
		t.Errorf("answers are %v", got)
	}
	fresh := answer(200, "new")
	f.SetEndpoints("b", []route.Endpoint{to(good.URL), to(fresh.URL)})
	if got := ask(300); got["new"] == 0 || got["good"]+got["new"] != 300 {
		t.Errorf("with a new one they are %v", got)
	}
}
