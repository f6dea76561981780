package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"time"

	"knarr/cluster/apiflags"
	"knarr/controlplane/etcd"
	"knarr/internal/run"
)

// joinServers asks the cluster's server for what all its servers share, and waits for
// one that is not there yet. Nil for a server that is a member already, or that
// joins nobody.
func (s *Server) joinServers(ctx context.Context) (*serverJoinResponse, error) {
	o := &s.opts
	p, err := s.layout.readPeerState()
	if err != nil {
		return nil, err
	}
	if p != nil {
		s.peerState = p
		if o.Server != "" {
			o.secret, o.serverSecret = "", "" // what it joined with is kept
		}
		if etcd.Initialized(s.layout.etcd()) || o.Server == "" {
			return nil, errors.Join(o.inherit(p.Settings), s.encryption())
		}
	}
	if o.Server == "" {
		return nil, nil
	}
	if etcd.Initialized(s.layout.etcd()) {
		return nil, fmt.Errorf("--data-dir %s holds a cluster of its own; give an empty directory to join %s, or leave --server out", o.DataDir, o.Server)
	}
	switch {
	case o.joinWith.secret == "":
		return nil, errors.New("--token: must be given; it is in server-token in the --data-dir of the server to join")
	case o.joinWith.caHash == "":
		return nil, errors.New("--token names no CA, and the keys of a cluster are not taken from whoever answers; copy server-token from the server's --data-dir whole")
	case !o.joinWith.server:
		return nil, errors.New("--token is that of nodes, which may not have the cluster's keys; copy server-token from the server's --data-dir")
	}
	var w *serverJoinResponse
	err = s.persist(ctx, func(ctx context.Context) error {
		w, err = s.requestJoin(ctx)
		return err
	})
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	return w, o.inherit(w.Settings)
}

// persist does something again for as long as waiting may mend it.
func (s *Server) persist(ctx context.Context, do func(context.Context) error) error {
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		one, cancel := context.WithTimeout(ctx, askTime)
		err := do(one)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, errUnreachable) {
			return err
		}
		slog.Warn("waiting for the server; if it should be there, look at --server", "err", err, "again", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// asks sends a request to the server to join.
func (s *Server) asks(ctx context.Context, ca *x509.CertPool, path, peer string, reply any) error {
	o := &s.opts
	body, err := json.Marshal(serverRequest{Secret: o.joinWith.secret, NodeName: o.NodeName, NodeIP: o.nodeIPs[0], PeerURL: peer})
	if err != nil {
		return err
	}
	answer, err := (&joinClient{server: o.Server, token: o.joinWith}).post(ctx, ca, path, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, reply); err != nil {
		return fmt.Errorf("--server %s: its answer: %w; is it a knarr server of this version?", o.Server, err)
	}
	return nil
}

func (s *Server) requestJoin(ctx context.Context) (*serverJoinResponse, error) {
	o := &s.opts
	ca, err := (&joinClient{server: o.Server, token: o.joinWith}).fetchCA(ctx)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("--server %s: its CA is no certificate", o.Server)
	}
	w := &serverJoinResponse{}
	if err := s.asks(ctx, pool, joinServerPath, "", w); err != nil {
		return nil, err
	}
	if !bytes.Equal(w.Files["ca.crt"], ca) {
		return nil, fmt.Errorf("--server %s: it handed over another CA than its own; is it a knarr server of this version?", o.Server)
	}
	return w, nil
}

// adopt keeps what the server handed over, where only root reads it.
func (s *Server) adopt(w *serverJoinResponse) error {
	if w == nil {
		return nil
	}
	for _, name := range sharedFiles {
		if len(w.Files[name]) == 0 {
			return fmt.Errorf("--server %s: it handed over no %s; is it a knarr server of this version?", s.opts.Server, name)
		}
		if err := writeFile(s.layout.tls(name), w.Files[name], 0o600); err != nil {
			return err
		}
	}
	if err := s.sameEncryption(w.Files[encryptionFile]); err != nil {
		return err
	}
	for file, t := range map[string]joinToken{
		s.layout.tokenFile(): {hashCA(w.Files["ca.crt"]), w.Nodes, false}, s.layout.serverTokenFile(): {hashCA(w.Files["ca.crt"]), w.Servers, true},
	} {
		if err := writeFile(file, []byte(t.String()+"\n"), 0o600); err != nil {
			return err
		}
	}
	s.peerState = &peerState{Name: s.opts.NodeName, Settings: w.Settings, Several: true, Servers: []string{s.opts.Server}}
	slog.Info("joining as a server", "server", s.opts.Server, "node", s.opts.NodeName)
	return s.layout.writePeerState(s.peerState)
}

// sameEncryption takes over what the cluster encrypts at rest, and refuses to
// read it with other keys.
func (s *Server) sameEncryption(theirs []byte) error {
	if file := s.opts.api.EncryptionFile(); file != "" {
		mine, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.Equal(mine, theirs) {
			return fmt.Errorf("--kube-apiserver-arg encryption-provider-config=%s says something else than that of %s; give the same file, or leave it out", file, s.opts.Server)
		}
		return nil
	}
	if len(theirs) == 0 {
		return nil
	}
	if err := writeFile(s.layout.tls(encryptionFile), theirs, 0o600); err != nil {
		return err
	}
	return s.encryption()
}

// encryption uses the configuration that was taken over, unless another is
// given.
func (s *Server) encryption() (err error) {
	file := s.layout.tls(encryptionFile)
	if _, missing := os.Stat(file); missing != nil || s.opts.api.EncryptionFile() != "" {
		return nil
	}
	s.opts.api, err = apiflags.Parse(append(s.opts.APIServerArgs, "encryption-provider-config="+file))
	return err
}

// quorumTime is how long it takes until the log says that the other servers are waited for.
const quorumTime = 3 * time.Second

// openStore runs this server's member of etcd, in a cluster of its own or with
// others.
func (s *Server) openStore(ctx context.Context) (*etcd.Member, error) {
	cfg := etcd.Config{Dir: s.layout.etcd()}
	switch {
	case s.peerState == nil && s.opts.ClusterInit:
		if err := s.remember(func(p *peerState) { p.Several = true }); err != nil {
			return nil, err
		}
	case s.peerState == nil || !s.peerState.Several:
		return etcd.Start(ctx, cfg)
	}
	n, err := s.network()
	if err != nil {
		return nil, err
	}
	cfg.Name, cfg.Network = s.opts.NodeName, n
	joins := !etcd.Initialized(cfg.Dir) && len(s.peerState.Servers) > 0
	if !joins {
		later := run.AfterFunc("join: quorum", quorumTime, func() {
			slog.Warn("waiting for the other servers: etcd goes on once most of them are there", "this", n.URL.Host)
		})
		defer later.Stop()
	}
	var m *etcd.Member
	err = s.persist(ctx, func(one context.Context) error {
		if !etcd.Initialized(cfg.Dir) && joins {
			cfg.Join = nil
			if err := s.asks(one, s.pool(), memberPath, n.URL.String(), &cfg.Join); err != nil {
				return err
			}
		}
		if m, err = etcd.Start(ctx, cfg); err != nil && joins && !errors.Is(err, etcd.ErrRemoved) && !etcd.Initialized(cfg.Dir) {
			return unreachable(s.opts.Server, err) // the members have changed meanwhile
		}
		return err
	})
	if err != nil || m == nil {
		return nil, s.whyRemoved(err)
	}
	if err := errors.Join(m.Promote(ctx), s.updatePeerURL(ctx, m)); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// updatePeerURL is for a server that has another address than before.
func (s *Server) updatePeerURL(ctx context.Context, m *etcd.Member) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return m.UpdatePeerURL(ctx)
}

// pool is the cluster's CA as it was taken over.
func (s *Server) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	b, _ := os.ReadFile(s.layout.tls("ca.crt"))
	pool.AppendCertsFromPEM(b)
	return pool
}

// whyRemoved says what to do for a server that is no member any more.
func (s *Server) whyRemoved(err error) error {
	if errors.Is(err, etcd.ErrRemoved) {
		return fmt.Errorf("this server was removed from its cluster, as its Node was deleted; knarr down --purge --data-dir %s, then it may join again", s.opts.DataDir)
	}
	return err
}

// remember changes what is kept of the other servers.
func (s *Server) remember(change func(*peerState)) error {
	s.partnersMu.Lock()
	defer s.partnersMu.Unlock()
	next := peerState{Name: s.opts.NodeName, Settings: s.opts.settings()}
	if s.peerState != nil {
		next.Several, next.Servers = s.peerState.Several, s.peerState.Servers
	}
	change(&next)
	if s.peerState != nil && reflect.DeepEqual(*s.peerState, next) {
		return nil
	}
	s.peerState = &next
	return s.layout.writePeerState(&next)
}
