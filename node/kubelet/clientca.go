package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"knarr/internal/follow"
	"knarr/internal/keypair"
)

// readClientCA reads the file of those that authenticate client certificates.
func (k *Kubelet) readClientCA() error {
	pool, err := keypair.Authorities(k.cfg.ClientCAFile)
	if err != nil {
		return fmt.Errorf("read the authorities of client certificates: %w", err)
	}
	k.clientCA.Store(pool)
	return nil
}

// followClientCA reads the file again when it changes: an authority is replaced by way of a
// file with both, and no node is to start anew for it.
func (k *Kubelet) followClientCA(ctx context.Context) {
	if k.cfg.ClientCAFile == "" {
		return
	}
	err := follow.File(ctx, k.cfg.ClientCAFile, func() time.Duration {
		if err := k.readClientCA(); err != nil { // half written, perhaps: what was there counts
			slog.WarnContext(ctx, "client certificates are believed as before", "err", err)
		}
		return 0
	})
	if err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "follow the authorities of client certificates", "file", k.cfg.ClientCAFile, "err", err)
	}
}

// askClients has clients show a certificate of the authorities that are known at that moment:
// they choose theirs by what the server names.
func (k *Kubelet) askClients(c *tls.Config) {
	pool := k.clientCA.Load()
	if pool == nil {
		return
	}
	c.ClientAuth, c.ClientCAs = tls.RequestClientCert, pool
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := k.clientCA.Load()
		if now == pool {
			return nil, nil
		}
		other := c.Clone()
		other.GetConfigForClient, other.ClientCAs = nil, now
		return other, nil
	}
}
