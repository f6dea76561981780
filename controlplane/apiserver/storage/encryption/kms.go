package encryption

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kmsapi "k8s.io/kms/apis/v2"
)

// How often a plugin is asked how it is, for how long its answer holds, and how
// long what seals is used without a good one: upstream's figures.
const (
	healthyInterval   = time.Minute
	unhealthyInterval = 10 * time.Second
	holdsWell         = 20 * time.Second
	holdsIll          = 3 * time.Second
	writeTime         = 3 * time.Minute
)

// maxKeys bounds the opened keys that are remembered: one for each server's
// start and each key of the plugin's.
const maxKeys = 8192

// A kms seals values with a key that only a plugin, another process, can open.
type kms struct {
	name    string
	socket  string
	timeout time.Duration
	conn    *grpc.ClientConn
	client  kmsapi.KeyManagementServiceClient
	counts  *counts

	writer atomic.Pointer[writer]

	keysMu sync.Mutex
	keys   map[[sha256.Size]byte]provider
	down   error // why the plugin could not be reached
	downTo time.Time

	askMu   sync.Mutex
	version string
	last    error
	until   time.Time
}

// A writer is what values are sealed with now.
type writer struct {
	provider
	envelope // without data
	expires  time.Time
}

func newKMS(c *apiserverv1.KMSConfiguration, counts *counts) (*kms, error) {
	socket, err := socketOf(c.Endpoint)
	if err != nil {
		return nil, err
	}
	k := &kms{name: c.Name, socket: c.Endpoint, timeout: c.Timeout.Duration, counts: counts, keys: map[[sha256.Size]byte]provider{}}
	k.conn, err = grpc.NewClient("passthrough:///"+socket, grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithUnaryInterceptor(k.timed))
	if err != nil {
		return nil, fmt.Errorf("failed to create connection to %s, error: %w", c.Endpoint, err)
	}
	k.client = kmsapi.NewKeyManagementServiceClient(k.conn)
	return k, nil
}

func (k *kms) timed(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	k.counts.recordCall(k.name, method, status.Code(err).String(), time.Since(began))
	return err
}

func (k *kms) ask() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), k.timeout)
}

func (k *kms) open(sealed, about []byte) ([]byte, bool, error) {
	e, err := parseEnvelope(sealed)
	if err != nil {
		return nil, false, err
	}
	p, err := k.key(e)
	if err != nil {
		return nil, false, err
	}
	k.counts.recordUse("from_storage", k.name, e.keyID)
	plain, stale, err := p.open(e.data, about)
	w := k.writer.Load()
	return plain, stale || w == nil || w.keyID != e.keyID || w.kind != e.kind, err
}

func (k *kms) seal(plain, about []byte) ([]byte, error) {
	w := k.writer.Load()
	if w == nil {
		return nil, errors.New("got unexpected nil transformer")
	}
	if now := time.Now(); now.After(w.expires) {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)",
			hashOf(w.keyID), w.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	e := w.envelope
	var err error
	if e.data, err = w.provider.seal(plain, about); err != nil {
		return nil, err
	}
	k.counts.recordUse("to_storage", k.name, e.keyID)
	return e.append(nil), nil
}

// key is the opened key of an envelope. A plugin that cannot be reached is not
// recordCall again for each of many values.
func (k *kms) key(e *envelope) (provider, error) {
	id := e.id()
	k.keysMu.Lock()
	p, down := k.keys[id], k.down
	if time.Now().After(k.downTo) {
		down = nil
	}
	k.keysMu.Unlock()
	if p != nil || down != nil {
		return p, down
	}
	ctx, cancel := k.ask()
	defer cancel()
	answer, err := k.client.Decrypt(ctx, &kmsapi.DecryptRequest{
		Ciphertext: e.source, Uid: uuid.NewString(), KeyId: e.keyID, Annotations: e.annotations})
	if err != nil {
		err = fmt.Errorf("failed to decrypt DEK, error: %w", err)
		if c := status.Code(err); c == codes.DeadlineExceeded || c == codes.Unavailable {
			k.keysMu.Lock()
			k.down, k.downTo = err, time.Now().Add(holdsIll)
			k.keysMu.Unlock()
		}
		return nil, err
	}
	make := newGCM
	if e.kind == seedSource {
		make = newSeeded
	}
	if p, err = make(answer.Plaintext); err != nil {
		return nil, err
	}
	k.remember(id, p)
	return p, nil
}

func (k *kms) remember(id [sha256.Size]byte, p provider) {
	k.keysMu.Lock()
	defer k.keysMu.Unlock()
	if len(k.keys) >= maxKeys {
		clear(k.keys)
	}
	k.keys[id] = p
	k.counts.setCachedKeys(k.name, len(k.keys))
}

// id tells envelopes of different keys apart.
func (e *envelope) id() [sha256.Size]byte {
	with := *e
	with.data = nil
	if len(with.annotations) > 1 {
		// Maps have no order; the sealed key tells enough apart.
		with.annotations = nil
	}
	return sha256.Sum256(with.append(binary.AppendUvarint(nil, uint64(e.kind))))
}

// check says how the plugin is, asking it when the last answer is too old, and
// takes over the key that it says is to be used.
func (k *kms) check() error {
	k.askMu.Lock()
	defer k.askMu.Unlock()
	if time.Now().Before(k.until) {
		return k.last
	}
	k.last = k.look()
	holds := holdsWell
	if k.last != nil {
		holds = holdsIll
	}
	k.until = time.Now().Add(holds)
	return k.last
}

func (k *kms) look() error {
	ctx, cancel := k.ask()
	answer, err := k.client.Status(ctx, &kmsapi.StatusRequest{})
	cancel()
	if err != nil {
		return fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", k.name, err)
	}
	var errs []error
	if answer.Healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", answer.Healthz))
	}
	switch v := answer.Version; {
	case v != "v2" && v != "v2beta1":
		errs = append(errs, fmt.Errorf("expected KMSv2 API version v2, got %s", v))
	case k.version == "":
		k.version = v
	case k.version != v:
		errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", k.version, v))
	}
	if code, err := checkKeyID(answer.KeyId); err != nil {
		k.counts.recordInvalidKeyID(k.name, code)
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", hashOf(answer.KeyId), err))
	} else {
		k.counts.recordKeyID(k.name, answer.KeyId)
		errs = append(errs, k.rotateKey(answer.KeyId))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", k.name, err)
	}
	return nil
}

// rotateKey seals with a new seed from now on when the plugin's key is another one;
// else the present one is good for longer.
func (k *kms) rotateKey(keyID string) error {
	expires := time.Now().Add(writeTime)
	old := k.writer.Load()
	if old != nil && old.keyID == keyID {
		longer := *old
		longer.expires = expires
		k.writer.Store(&longer)
		return nil
	}
	uid := uuid.NewString()
	w, err := k.newWriter(uid)
	if err == nil && w.keyID == keyID {
		w.expires = expires
		k.writer.Store(w)
		k.remember(w.id(), w.provider)
		return nil
	}
	drawn, had, until := "", "", time.Time{}
	if w != nil {
		drawn = w.keyID
	}
	var none error
	if old != nil {
		had, until = old.keyID, old.expires
	} else {
		none = errors.New("got unexpected nil transformer")
	}
	return fmt.Errorf("failed to rotate DEK uid=%q, useSeed=%v, errState=%v, errGen=%v, statusKeyIDHash=%q, encryptKeyIDHash=%q, stateKeyIDHash=%q, expirationTimestamp=%s",
		uid, true, none, err, hashOf(keyID), hashOf(drawn), hashOf(had), until.Format(time.RFC3339))
}

// newWriter makes a seed and has the plugin seal it.
func (k *kms) newWriter(uid string) (*writer, error) {
	seed := make([]byte, seedSize)
	_, _ = rand.Read(seed) // never fails
	ctx, cancel := k.ask()
	defer cancel()
	answer, err := k.client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: seed, Uid: uid})
	if err != nil {
		return nil, fmt.Errorf("failed to encrypt DEK, error: %w", err)
	}
	w := &writer{provider: seeded{seed}, envelope: envelope{
		keyID: answer.KeyId, source: answer.Ciphertext, annotations: answer.Annotations, kind: seedSource}}
	return w, w.envelope.check()
}

// runStatusChecks asks the plugin how it is until ctx ends, and calls recovered when it is
// well again.
func (k *kms) runStatusChecks(ctx context.Context, recovered func()) {
	well := k.check() == nil
	for {
		wait := healthyInterval + mathrand.N(healthyInterval/10) // servers that start together do not ask together
		if !well {
			wait = unhealthyInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		err := k.check()
		if err != nil {
			slog.WarnContext(ctx, "kms plugin failed health check probe", "name", k.name, "err", err)
		} else if !well {
			recovered()
		}
		well = err == nil
	}
}

func hashOf(keyID string) string {
	if keyID == "" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(keyID)))
}

// socketOf is the path in an endpoint; one that starts with @ is of no file.
func socketOf(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return "", fmt.Errorf("unsupported scheme of %q for remote KMS provider", endpoint)
	}
	if strings.HasPrefix(path, "/@") {
		path = path[1:]
	}
	return path, nil
}
