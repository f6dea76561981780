package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
)

// membership is what an agent got by joining, and keeps.
type membership struct {
	Server       string            `json:"server"`
	CA           []byte            `json:"ca"` // PEM
	Facts        facts             `json:"facts"`
	Certificates map[string][]byte `json:"certificates"`

	pool *x509.CertPool
	key  []byte // PEM
}

// nodeKey is the key that this node is known by.
func nodeKey(l layout) (*ecdsa.PrivateKey, error) { return openKey(l.tls("kubelet.key")) }

// complete fills in what is not stored.
func (m *membership) complete(key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	m.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	m.pool = x509.NewCertPool()
	if !m.pool.AppendCertsFromPEM(m.CA) {
		return errors.New("the CA is no certificate")
	}
	return nil
}

// writeMember keeps a membership, and the kubelet's certificate where it looks.
func (l layout) writeMember(m *membership) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := writeFile(l.tls("kubelet.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificates["kubelet"]}), 0o644); err != nil {
		return err
	}
	return writeFile(l.joined(), append(b, '\n'), 0o600)
}

// remembered is the membership of the last start, nil if it does not serve.
func (a *Agent) remembered(key *ecdsa.PrivateKey) *membership {
	b, err := os.ReadFile(a.layout.joined())
	m := &membership{}
	if err != nil || json.Unmarshal(b, m) != nil || m.complete(key) != nil || !a.serves(m, time.Now()) {
		return nil
	}
	return m
}

// serves says whether the node can go on with a membership.
func (a *Agent) serves(m *membership, now time.Time) bool {
	if m.Server != a.opts.Server || a.opts.token.caHash != "" && hashCA(m.CA) != a.opts.token.caHash {
		return false
	}
	for _, l := range nodeLeaves(a.opts.NodeName, []netip.Addr{a.opts.nodeIP}) {
		cert, err := x509.ParseCertificate(m.Certificates[l.name])
		if err != nil || cert.Subject.CommonName != l.user || now.After(cert.NotAfter) {
			return false
		}
		for _, h := range l.hosts {
			if cert.VerifyHostname(h) != nil {
				return false
			}
		}
	}
	return true
}

// askTime bounds each question to the server.
const askTime = 10 * time.Second

// ask joins once.
func (a *Agent) ask(ctx context.Context, key *ecdsa.PrivateKey) (*membership, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ca, err := a.fetchCA(ctx)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + a.opts.NodeName}}, key)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(joinRequest{Secret: a.opts.token.secret, NodeName: a.opts.NodeName, NodeIPs: []netip.Addr{a.opts.nodeIP}, CSR: csr})
	if err != nil {
		return nil, err
	}
	m := &membership{Server: a.opts.Server, CA: ca}
	if err := m.complete(key); err != nil {
		return nil, fmt.Errorf("--server %s: %w", a.opts.Server, err)
	}
	answer, _, err := a.request(ctx, &tls.Config{RootCAs: m.pool, MinVersion: tls.VersionTLS12}, http.MethodPost, joinPath, body)
	if err != nil {
		return nil, err
	}
	var reply joinReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, fmt.Errorf("--server %s: its answer to join: %w; is it a knarr server of this version?", a.opts.Server, err)
	}
	m.Facts, m.Certificates = reply.Facts, reply.Certificates
	if !a.serves(m, time.Now()) {
		return nil, fmt.Errorf("--server %s: it signed other certificates than were asked for; is it a knarr server of this version?", a.opts.Server)
	}
	return m, nil
}

// fetchCA gets the server's CA, believing nobody, and holds it to the token's
// hash: what it says counts only then.
func (a *Agent) fetchCA(ctx context.Context) ([]byte, error) {
	ca, date, err := a.request(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, http.MethodGet, caPath, nil)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(ca, []byte("BEGIN CERTIFICATE")) {
		return nil, fmt.Errorf("--server %s: what answers there is no knarr server", a.opts.Server)
	}
	if want := a.opts.token.caHash; want != "" && hashCA(ca) != want {
		return nil, fmt.Errorf("--token is of another cluster than --server %s, whose CA has the hash %s; copy node-token from that server's --data-dir", a.opts.Server, hashCA(ca))
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

// request asks the server one thing, and tells the user's mistakes from what
// waiting may mend.
func (a *Agent) request(ctx context.Context, config *tls.Config, method, path string, body []byte) (answer []byte, date string, err error) {
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	server := a.opts.Server
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
	case path == joinPath && resp.StatusCode < 500 && resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusForbidden:
		return nil, "", fmt.Errorf("%s (says %s)", strings.TrimSpace(string(answer)), server)
	}
	return nil, "", fmt.Errorf("--server %s: what answers there is no knarr server (%s)", server, resp.Status)
}
