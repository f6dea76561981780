package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// A joinClient is the client of the endpoints at which machines join a cluster.
type joinClient struct {
	server string // URL
	token  joinToken
	anyCA  bool // trust on first use, if the token names no CA
	// dial reaches the server, and name is what its certificate must bear.
	// Default: those of the URL.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	name string
}

// post sends one request to a server whose certificate the CA has signed.
func (d *joinClient) post(ctx context.Context, ca *x509.CertPool, path string, body []byte) ([]byte, error) {
	answer, _, err := d.request(ctx, &tls.Config{RootCAs: ca, MinVersion: tls.VersionTLS12}, http.MethodPost, path, body)
	return answer, err
}

// fetchCA gets the server's CA over a connection that authenticates nobody, and
// compares it with the hash in the token: it is trusted only if they are equal.
func (d *joinClient) fetchCA(ctx context.Context) ([]byte, error) {
	if d.token.caHash == "" && !d.anyCA {
		return nil, errors.New("--token names no CA; copy it whole")
	}
	ca, date, err := d.request(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, http.MethodGet, caPath, nil)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(ca, []byte("BEGIN CERTIFICATE")) {
		return nil, fmt.Errorf("--server %s: what answers there is no knarr server", d.server)
	}
	if want := d.token.caHash; want != "" && hashCA(ca) != want {
		return nil, fmt.Errorf("--token is of another cluster than --server %s, whose CA has the hash %s; copy %s from that server's --data-dir", d.server, hashCA(ca), d.token.file())
	}
	return ca, skewed(time.Now(), date)
}

// skewed refuses to join with a clock that the certificates would not bear.
// Pure.
func skewed(mine time.Time, date string) error {
	theirs, err := http.ParseTime(date)
	if err != nil {
		return nil // it does not say
	}
	if d := mine.Sub(theirs); d.Abs() > backdate/2 {
		return fmt.Errorf("this machine's clock says %s, the server's %s; set the wrong one right", mine.UTC().Format(time.RFC3339), theirs.UTC().Format(time.RFC3339))
	}
	return nil
}

// request sends the server one request, and distinguishes the user's mistakes from what
// waiting may mend.
func (d *joinClient) request(ctx context.Context, config *tls.Config, method, path string, body []byte) (answer []byte, date string, err error) {
	config.ServerName = d.name
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DialContext: d.dial}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	server := d.server
	req, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		if _, ok := errors.AsType[x509.HostnameError](err); ok {
			return nil, "", fmt.Errorf("--server %s: its certificate has no such name; start the server with it as --tls-san, or give an address that it has", server)
		}
		if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
			return nil, "", fmt.Errorf("--server %s: what answers there does not speak TLS; give the API server's port", server)
		}
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return nil, "", fmt.Errorf("--server %s: %w", server, err)
		}
		return nil, "", unreachable(server, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return nil, "", unreachable(server, err)
	case resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusTooManyRequests:
		return nil, "", unreachable(server, errors.New(strings.TrimSpace(string(answer))))
	case resp.StatusCode == http.StatusOK:
		return answer, resp.Header.Get("Date"), nil
	case method == http.MethodPost && resp.StatusCode < 500 && resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusForbidden:
		return nil, "", fmt.Errorf("%s (says %s)", strings.TrimSpace(string(answer)), server)
	}
	return nil, "", fmt.Errorf("--server %s: what answers there is no knarr server (%s)", server, resp.Status)
}
