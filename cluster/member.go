package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"time"

	kubeletcertificates "knarr/node/kubelet/certificates"
)

// membership is what an agent got by joining, and keeps.
type membership struct {
	Server       string            `json:"server"`
	CA           []byte            `json:"ca"` // PEM
	Facts        facts             `json:"facts"`
	Certificates map[string][]byte `json:"certificates"`
	// Servers are where all servers are, once there were several: host:port.
	Servers []string `json:"servers,omitempty"`

	pool *x509.CertPool
}

// nodeKeyFile is below tls/: the key that this node is known by.
const nodeKeyFile = "kubelet.key"

func nodeKey(l layout) (*ecdsa.PrivateKey, error) { return openKey(l.tls(nodeKeyFile)) }

// complete fills in what is not stored.
func (m *membership) complete() error {
	m.pool = x509.NewCertPool()
	if !m.pool.AppendCertsFromPEM(m.CA) {
		return errors.New("the CA is no certificate")
	}
	return nil
}

// writeMember keeps a membership, and its certificates where they are looked for.
func (l layout) writeMember(m *membership) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	for _, is := range nodeLeaves("", nil) {
		file, content := l.tls(is.name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificates[is.name]})
		if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, content) {
			continue
		}
		if err := writeFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return writeFile(l.joined(), append(b, '\n'), 0o600)
}

// remembered is the membership of the last start in the cluster of --server and
// --token, nil without one. Its certificates may have ended.
func (a *Agent) remembered() *membership {
	b, err := os.ReadFile(a.layout.joined())
	m := &membership{}
	if err != nil || json.Unmarshal(b, m) != nil || m.complete() != nil || !a.belongs(m) {
		return nil
	}
	return m
}

// belongs reports whether a membership is of the cluster of --server and --token.
func (a *Agent) belongs(m *membership) bool {
	return m.Server == a.opts.Server && (a.opts.token.caHash == "" || hashCA(m.CA) == a.opts.token.caHash)
}

// rememberedFamilies are the pods' ranges of the cluster this node was a member of, nil
// without one.
func (l layout) rememberedFamilies() ranges {
	var m membership
	if b, err := os.ReadFile(l.joined()); err != nil || json.Unmarshal(b, &m) != nil {
		return nil
	}
	return m.Facts.ClusterCIDRs
}

// serves reports whether the node can go on with a membership.
func (a *Agent) serves(m *membership, now time.Time) bool {
	if !a.belongs(m) {
		return false
	}
	ips, err := a.opts.hostIPs.ofCluster(m.Facts.ClusterCIDRs, a.opts.NodeIP != "")
	if err != nil {
		return false
	}
	for _, l := range nodeLeaves(a.opts.NodeName, ips) {
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

// renewal is when the first of its certificates should have a successor.
func (m *membership) renewal() (at time.Time) {
	for _, der := range m.Certificates {
		if cert, err := x509.ParseCertificate(der); err == nil && (at.IsZero() || renewal(cert).Before(at)) {
			at = renewal(cert)
		}
	}
	return at
}

// renewSpread is what the renewals of nodes that joined together are spread over, and
// renewFirst and renewMost how soon one that failed is tried again.
const (
	renewSpread = leafLife / 12
	renewFirst  = 30 * time.Second
	renewMost   = time.Hour
)

// renewCertificates joins again when the certificates of a node should have
// successors, by its key, whatever has become of the token. Who shows one reads its
// file again.
func (a *Agent) renewCertificates(ctx context.Context, m *membership) error {
	key, err := nodeKey(a.layout)
	if err != nil {
		return err
	}
	spread, failed := mathrand.N(renewSpread), time.Duration(0)
	for {
		due := m.renewal().Add(spread)
		select {
		case <-time.After(min(max(time.Until(due), failed, time.Second), maxRenewalWait)):
		case <-ctx.Done():
			return nil
		}
		if time.Now().Before(due) {
			continue
		}
		next, err := a.ask(ctx, key)
		if err == nil {
			err = a.take(m, next)
		}
		if err != nil {
			failed = min(max(2*failed, renewFirst), renewMost)
			slog.WarnContext(ctx, "renew the certificates of this node", "err", err, "again", failed)
			kubeletcertificates.Failed()
			continue
		}
		failed = 0
		slog.InfoContext(ctx, "renewed the certificates of this node", "next", m.renewal())
	}
}

// take keeps the certificates of a membership that was renewed. What could not be
// written does not count as renewed: it would not be tried again for months.
func (a *Agent) take(m, renewed *membership) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := *m
	next.Certificates = renewed.Certificates
	if err := a.layout.writeMember(&next); err != nil {
		return err
	}
	m.Certificates = next.Certificates
	return nil
}

// askTime bounds each question to the server.
const askTime = 10 * time.Second

// ask joins once.
func (a *Agent) ask(ctx context.Context, key *ecdsa.PrivateKey) (*membership, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ca, err := a.joinClient().fetchCA(ctx)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + a.opts.NodeName}}, key)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(joinRequest{Secret: a.opts.token.secret, NodeName: a.opts.NodeName, NodeIPs: a.opts.hostIPs, CSR: csr})
	if err != nil {
		return nil, err
	}
	m := &membership{Server: a.opts.Server, CA: ca}
	if err := m.complete(); err != nil {
		return nil, fmt.Errorf("--server %s: %w", a.opts.Server, err)
	}
	answer, err := a.joinClient().post(ctx, m.pool, joinPath, body)
	if err != nil {
		return nil, err
	}
	var reply joinReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, fmt.Errorf("--server %s: its answer to join: %w; is it a knarr server of this version?", a.opts.Server, err)
	}
	m.Facts, m.Certificates = reply.Facts, reply.Certificates
	if _, err := a.opts.hostIPs.ofCluster(m.Facts.ClusterCIDRs, a.opts.NodeIP != ""); err != nil {
		return nil, fmt.Errorf("--node-ip: %w", err)
	}
	if !a.serves(m, time.Now()) {
		return nil, fmt.Errorf("--server %s: it signed other certificates than were asked for; is it a knarr server of this version?", a.opts.Server)
	}
	return m, nil
}
