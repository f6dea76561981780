package containerruntime

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http/httptest"
	"testing"
)

// TestSharedAnswers: one node has a few of the answers under way, and those that ended give
// their place back once.
func TestSharedAnswers(t *testing.T) {
	var a answers
	var ends []func()
	for i := range sharedWith {
		end, ok := a.begin("greedy")
		if !ok {
			t.Fatalf("answer %d is refused", i)
		}
		ends = append(ends, end)
	}
	if _, ok := a.begin("greedy"); ok {
		t.Error("one node has more than its answers")
	}
	for i := range sharedAtOnce - sharedWith {
		if _, ok := a.begin(fmt.Sprint("node", i)); !ok {
			t.Fatalf("answer %d to others is refused", i)
		}
	}
	if _, ok := a.begin("late"); ok {
		t.Error("there are more than all")
	}
	for range 2 {
		ends[0]()
	}
	if _, ok := a.begin("late"); !ok {
		t.Error("no place where one has ended")
	}
	if _, ok := a.begin("later"); ok {
		t.Error("ending twice made two places")
	}
	r := httptest.NewRequest("GET", "/v2/", nil)
	r.RemoteAddr = "10.0.0.1:5"
	if got := asker(r); got != "10.0.0.1" {
		t.Errorf("%q asks", got)
	}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "system:node:a"}}}}
	if got := asker(r); got != "system:node:a" {
		t.Errorf("%q asks", got)
	}
}
