package kubelet

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestUnapprovedCertificateIsLogged: a kubelet that has no certificate to serve with says what
// to do, once a minute at most, until it has one.
func TestUnapprovedCertificateIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := errors.New("no serving certificate available for the kubelet")
		get := warnUnapproved(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &tls.Certificate{}, missing })
		text := logged(t, func() {
			for range 120 {
				if c, err := get(nil); c != nil || !errors.Is(err, missing) {
					t.Fatal(c, err)
				}
				time.Sleep(time.Second)
			}
			missing = nil
			if c, err := get(nil); c == nil || err != nil {
				t.Fatal(c, err)
			}
		})
		if strings.Count(text, "level=WARN") != 2 || strings.Count(text, "approve it: kubectl certificate approve") != 2 {
			t.Errorf("want two lines in two minutes, not\n%s", text)
		}
	})
}
