package storage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Remote is an etcd outside this process.
type Remote struct {
	// Endpoints are its URLs, http or https.
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files: who signed its certificate
	// (default: the host's authorities), and what is shown to it (default:
	// nothing).
	CAFile, CertFile, KeyFile string
}

// dialTime is how long an etcd may take to answer before it counts as absent.
const dialTime = 20 * time.Second

// Dial connects to an etcd and waits until it answers. Give the client to
// NewEtcd.
func Dial(ctx context.Context, r Remote) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints: r.Endpoints, DialTimeout: dialTime,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		MaxCallRecvMsgSize: 2 << 30, Logger: zap.NewNop(),
	}
	if r.CAFile != "" || r.CertFile != "" {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if r.CAFile != "" {
			b, err := os.ReadFile(r.CAFile)
			if err != nil {
				return nil, err
			}
			cfg.TLS.RootCAs = x509.NewCertPool()
			if !cfg.TLS.RootCAs.AppendCertsFromPEM(b) {
				return nil, fmt.Errorf("read %s: no certificate in PEM form", r.CAFile)
			}
		}
		if r.CertFile != "" {
			pair, err := tls.LoadX509KeyPair(r.CertFile, r.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", r.CertFile, err)
			}
			cfg.TLS.Certificates = []tls.Certificate{pair}
		}
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if _, err := client.Get(ctx, "/registry/"); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = noAnswerError(ctx, client)
		}
		return nil, errors.Join(fmt.Errorf("reach etcd at %v: %w", r.Endpoints, err), client.Close())
	}
	return client, nil
}

// noAnswerError says why there is no answer: only a call that does not wait for a
// connection gets the outcome.
func noAnswerError(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, err := etcdserverpb.NewKVClient(client.ActiveConnection()).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte("/registry/")})
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable {
		return fmt.Errorf("no answer in %s: %s", dialTime, s.Message())
	}
	return fmt.Errorf("no answer in %s", dialTime)
}
