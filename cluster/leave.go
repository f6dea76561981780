package cluster

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"knarr/internal/failover"
)

// leaveTime bounds how long a server takes its leave.
const leaveTime = 8 * time.Second

// leave tells the cluster's other servers, if there are any, that this one is
// gone for good. A cluster that cannot be reached does not hold it up.
func (l layout) leave(ctx context.Context) {
	p, err := l.readPeerState()
	if err == nil && (p == nil || !p.Several || len(p.Servers) == 0) {
		return
	}
	if err == nil {
		err = l.askToLeave(ctx, p)
	}
	if err != nil {
		slog.Warn("the cluster's other servers do not know that this one is gone; kubectl delete node there tells them", "err", err)
	}
}

func (l layout) askToLeave(ctx context.Context, p *peerState) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	text, err := Token(l.dir, true)
	if err != nil {
		return err
	}
	token, err := parseToken(text)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(l.tls("ca.crt"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	body, err := json.Marshal(serverRequest{Secret: token.secret, NodeName: p.Name})
	if err != nil {
		return err
	}
	var errs []error
	for _, server := range p.Servers {
		d := &joinClient{server: server, token: token, name: serverName, dial: failover.New(strings.TrimPrefix(server, "https://")).DialContext}
		if _, err := d.post(ctx, pool, leavePath, body); err == nil {
			return nil
		} else {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
