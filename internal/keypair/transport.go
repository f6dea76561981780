package keypair

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"
)

// A Transport lets go of its idle connections when the certificate that they were
// made with is another by now: a server asks at each request whether it is still
// valid.
type Transport struct {
	*http.Transport
	client *File // nil: none is shown
	shown  atomic.Pointer[tls.Certificate]
}

// NewTransport wraps t, whose connections show client.
func NewTransport(t *http.Transport, client *File) *Transport {
	return &Transport{Transport: t, client: client}
}

// RoundTrip is an http.RoundTripper's.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.client != nil {
		now, err := t.client.Certificate()
		if err == nil && t.shown.Swap(now) != now {
			t.CloseIdleConnections()
		}
	}
	return t.Transport.RoundTrip(r)
}
