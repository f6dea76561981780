package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
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
	if m.Server != a.opts.Server || a.opts.token.caHash != "" && hashCA(m.CA) != a.opts.token.caHash {
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
	if err := m.complete(key); err != nil {
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
