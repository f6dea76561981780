// Package podcertificate gets the certificates that pods name as sources of their
// volumes. It reads ServiceAccounts and the Node for their UIDs, makes a
// PodCertificateRequest for each source, follows it until a signer has decided, and makes
// another when that certificate is to be renewed. Keys are made here and stay in memory:
// after a restart each source gets a new one.
package podcertificate

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// overdue is how long after its time of renewal a certificate is called overdue.
	overdue = 10 * time.Minute
	// jitter is the longest time that renewals are put off, so that not all come at once.
	jitter = 5 * time.Minute
	// lookAgain is how soon a certificate is asked for once more that is to be renewed:
	// an end of its request is told of at once, this is for what was missed.
	lookAgain = 5 * time.Minute
)

// Config is what a Manager works with.
type Config struct {
	Client kubernetes.Interface
	// Node is this node's name, NodeUID answers with the UID of its Node.
	Node    string
	NodeUID func(context.Context) (types.UID, error)
	// Changed is told of a pod for which a signer has decided.
	Changed func(pod types.UID)
	// Follow runs what follows the node's requests, until the kubelet ends at the latest.
	Follow func(follow func(context.Context))
	// Event tells a pod of what came of its request.
	Event func(pod *corev1.Pod, kind, reason, message string)
}

// A Manager holds the certificates of this node's pods.
type Manager struct {
	cfg Config

	mu       sync.Mutex
	all      map[types.UID]map[source]*record
	requests follower
}

// A source is one of a volume's.
type source struct {
	volume string
	index  int
}

// A record is the certificate of a source, and the request for the next.
type record struct {
	mu sync.Mutex
	// cred is what there is, nil before the first.
	cred    *Credentials
	refresh time.Time
	ends    time.Time
	// warned are the warnings about cred that the pod has had.
	warned map[string]bool
	// key and request are of what is asked for, "" while nothing is.
	key     []byte
	request string
	// dead says why no signer will be asked again, and how it came to that.
	dead error
	end  string
	// shown is what is told of it while mu is held for a request of the API.
	shown atomic.Pointer[shown]
}

// shown is what is told of a record.
type shown struct {
	signer        string
	end           string // denied or failed
	refresh, ends time.Time
	issued        bool
}

// state is upstream's name of the state of a certificate.
func (s *shown) state(now time.Time) string {
	switch {
	case s.end != "":
		return s.end
	case !s.issued:
		return "not_yet_issued"
	case now.After(s.ends):
		return "expired"
	case now.After(s.refresh.Add(overdue)):
		return "overdue_for_refresh"
	}
	return "fresh"
}

// A State is of how many sources of a signer's certificates there are.
type State struct{ Signer, State string }

// States counts the sources of the node's pods.
func (m *Manager) States(now time.Time) map[State]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[State]int{}
	for _, of := range m.all {
		for _, r := range of {
			if s := r.shown.Load(); s != nil {
				out[State{s.signer, s.state(now)}]++
			}
		}
	}
	return out
}

// Credentials are a key and certificates, both in PEM.
type Credentials struct{ Key, Chain []byte }

var errPending = errors.New("credential bundle is not issued yet")

// New returns a Manager.
func New(c Config) *Manager {
	return &Manager{cfg: c, all: map[types.UID]map[source]*record{}, requests: follower{undecided: map[cache.ObjectName]types.UID{}, fewer: make(chan struct{}, 1)}}
}

// Get answers with the certificate of a source of a pod's volume, and when to ask again.
// Before there is one it has it asked for, and answers with an error: Changed tells when
// to come back.
func (m *Manager) Get(ctx context.Context, pod *corev1.Pod, volume string, index int, p *corev1.PodCertificateProjection) (Credentials, time.Time, error) {
	r := m.record(pod.UID, source{volume, index})
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.shown.Store(&shown{p.SignerName, r.end, r.refresh, r.ends, r.cred != nil}) }()
	if r.dead != nil {
		return Credentials{}, time.Time{}, r.dead
	}
	err := m.step(ctx, r, pod, p)
	now := time.Now()
	switch {
	case r.dead != nil:
		return Credentials{}, time.Time{}, r.dead
	case r.cred == nil && err == nil:
		return Credentials{}, time.Time{}, errPending
	case r.cred == nil:
		return Credentials{}, time.Time{}, err
	}
	m.warn(r, pod, now)
	if now.Before(r.refresh) {
		return *r.cred, r.refresh, nil
	}
	return *r.cred, now.Add(lookAgain), nil
}

func (m *Manager) record(pod types.UID, s source) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.all[pod]
	if of == nil {
		of = map[source]*record{}
		m.all[pod] = of
	}
	if of[s] == nil {
		of[s] = &record{}
	}
	return of[s]
}

// Forget drops what a pod had that is gone.
func (m *Manager) Forget(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, pod)
	m.unfollow(pod)
}

// step does what is next for a record: it asks, or looks what was answered.
func (m *Manager) step(ctx context.Context, r *record, pod *corev1.Pod, p *corev1.PodCertificateProjection) error {
	if r.request == "" {
		if r.cred != nil && time.Now().Before(r.refresh) {
			return nil
		}
		return m.ask(ctx, r, pod, p)
	}
	request, err := m.cfg.Client.CertificatesV1beta1().PodCertificateRequests(pod.Namespace).Get(ctx, r.request, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // somebody deleted it: only another one can be answered
		r.request, r.key = "", nil
		return m.ask(ctx, r, pod, p)
	case err != nil:
		return fmt.Errorf("while getting PodCertificateRequest %q: %w", pod.Namespace+"/"+r.request, err)
	}
	m.decided(r, pod, request)
	return nil
}

// decided takes what a signer has said of a request, if anything.
func (m *Manager) decided(r *record, pod *corev1.Pod, request *certificatesv1beta1.PodCertificateRequest) {
	name := request.Namespace + "/" + request.Name
	for _, c := range request.Status.Conditions {
		how := ""
		switch c.Type {
		case certificatesv1beta1.PodCertificateRequestConditionTypeIssued:
			if request.Status.BeginRefreshAt == nil || request.Status.NotAfter == nil {
				continue
			}
			r.cred = &Credentials{Key: r.key, Chain: clean([]byte(request.Status.CertificateChain))}
			r.ends = request.Status.NotAfter.Time
			r.refresh = request.Status.BeginRefreshAt.Add(mathrand.N(jitter))
			r.key, r.request, r.warned = nil, "", map[string]bool{}
			return
		case certificatesv1beta1.PodCertificateRequestConditionTypeDenied:
			r.dead = fmt.Errorf("PodCertificateRequest was permanently denied: reason=%q message=%q", c.Reason, c.Message)
			how, r.end = "was denied", "denied"
		case certificatesv1beta1.PodCertificateRequestConditionTypeFailed:
			r.dead = fmt.Errorf("PodCertificateRequest was permanently failed: reason=%q message=%q", c.Reason, c.Message)
			how, r.end = "failed", "failed"
		default:
			continue
		}
		r.key, r.cred = nil, nil
		m.cfg.Event(pod, corev1.EventTypeWarning, c.Type, fmt.Sprintf("PodCertificateRequest %s %s, reason=%q, message=%q", name, how, c.Reason, c.Message))
		return
	}
}

// warn tells the pod once of a certificate that was not renewed in time.
func (m *Manager) warn(r *record, pod *corev1.Pod, now time.Time) {
	for _, w := range []struct {
		at              time.Time
		reason, message string
	}{
		{r.refresh.Add(overdue), "CertificateOverdueForRefresh", "PodCertificate refresh overdue"},
		{r.ends, "CertificateExpired", "PodCertificate expired"},
	} {
		if now.After(w.at) && !r.warned[w.reason] {
			r.warned[w.reason] = true
			m.cfg.Event(pod, corev1.EventTypeWarning, w.reason, w.message)
		}
	}
}

// ask makes a key and a request for its certificate.
func (m *Manager) ask(ctx context.Context, r *record, pod *corev1.Pod, p *corev1.PodCertificateProjection) error {
	account, err := m.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("while fetching service account: %w", err)
	}
	node, err := m.cfg.NodeUID(ctx)
	if err != nil {
		return fmt.Errorf("while getting node object: %w", err)
	}
	key, stub, err := newKey(p.KeyType)
	if err != nil {
		return err
	}
	var made *certificatesv1beta1.PodCertificateRequest
	m.making()
	defer func() { m.follow(pod.UID, made) }()
	request, err := m.cfg.Client.CertificatesV1beta1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}},
		Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(m.cfg.Node), NodeUID: node,
			MaxExpirationSeconds: p.MaxExpirationSeconds, StubPKCS10Request: stub, UnverifiedUserAnnotations: p.UserAnnotations,
		}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("while creating PodCertificateRequest: %w", err)
	}
	r.key, r.request, made = key, request.Name, request
	return nil
}

// newKey makes a key, in PEM, and a certificate request signed with it that says nothing
// else.
func newKey(kind string) (key, stub []byte, err error) {
	var private crypto.Signer
	switch kind {
	case "RSA3072":
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		private, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("unknown key type %q", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a key of type %s: %w", kind, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("write a key of type %s: %w", kind, err)
	}
	if stub, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private); err != nil {
		return nil, nil, fmt.Errorf("sign a request with a key of type %s: %w", kind, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), stub, nil
}

// clean leaves certificates alone of what a signer wrote: text between and within them
// is for nobody's eyes but the signer's.
func clean(text []byte) (chain []byte) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return chain
		}
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Bytes})...)
	}
}
