package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// issued is a certificate and its key.
func issued(t testing.TB, from, to time.Time, hosts ...string) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: hosts, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, of, of, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})
}

func secretOf(t testing.TB, ours bool, from, to time.Time, hosts ...string) *corev1.Secret {
	s := &corev1.Secret{Data: map[string][]byte{}}
	if ours {
		s.Labels = map[string]string{managedBy: us}
	}
	s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey] = issued(t, from, to, hosts...)
	return s
}

const day = 24 * time.Hour

func TestDue(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	later := func(at time.Time) bool { return at.After(now.Add(50*day)) && at.Before(now.Add(61*day)) }
	atOnce := func(at time.Time) bool { return at.Equal(now) }
	for _, test := range []struct {
		name string
		have *corev1.Secret
		want func(time.Time) bool // nil: it is not ours
	}{
		{"none", nil, atOnce},
		{"a fresh one", secretOf(t, true, now, now.Add(90*day), "a.org", "b.org"), later},
		{"one of another name", secretOf(t, true, now, now.Add(90*day), "a.org"), atOnce},
		{"an expired one", secretOf(t, true, now.Add(-90*day), now, "a.org", "b.org"), func(at time.Time) bool { return at.Before(now) }},
		{"no certificate", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{managedBy: us}}}, atOnce},
		{"somebody's", secretOf(t, false, now, now.Add(90*day), "a.org", "b.org"), nil},
	} {
		at, err := due(&Want{Secret: types.NamespacedName{Namespace: "n", Name: "s"}, Hosts: []string{"a.org", "b.org"}, Have: test.have}, now)
		if (err != nil) != (test.want == nil) || err == nil && !test.want(at) {
			t.Errorf("%s: %v, %v", test.name, at, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	for host, want := range map[string]bool{
		"a.knarr.dev": true, "knarr.dev": true, "localhost": false, "db": false, "a.local": false, "10.0.0.1": false, "::1": false, "a.svc.cluster.local": false,
		"a.example.com": false, "x.test": false, "*.knarr.dev": false, "1.0.0.127.in-addr.arpa": false,
	} {
		if err := refusal([]string{host}, false); (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := refusal([]string{"a.local"}, true); err != nil {
		t.Errorf("with another authority: %v", err)
	}
	if refusal([]string{"*.a.local"}, true) == nil || refusal(nil, true) == nil || refusal(make([]string, maxHosts+1), true) == nil {
		t.Error("a wildcard, no host or too many are ordered")
	}
}

func TestOrdersOfAnHour(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var o orders
	for i := range maxOrdersEach {
		o = append(o, order{now.Add(time.Duration(i) * time.Minute), "greedy"})
	}
	at := now.Add(20 * time.Minute)
	if got := o.next("greedy", at); !got.Equal(now.Add(time.Hour)) {
		t.Errorf("one namespace may order again at %v", got)
	}
	if got := o.next("other", at); !got.Equal(at) {
		t.Errorf("another one may order at %v", got)
	}
	for i := range maxOrders - maxOrdersEach {
		o = append(o, order{at, fmt.Sprint(i)})
	}
	if got := o.next("other", at); !got.Equal(now.Add(time.Hour)) {
		t.Errorf("after %d orders the next one is at %v", len(o), got)
	}
	if got := o.next("greedy", now.Add(2*time.Hour)); !got.Equal(now.Add(2 * time.Hour)) {
		t.Errorf("later one may order at %v", got)
	}
	for failures, want := range map[int]time.Duration{1: 5 * time.Minute, 2: 10 * time.Minute, 4: 40 * time.Minute, 9: 12 * time.Hour, 1000: 12 * time.Hour} {
		if got := after(failures); got != want {
			t.Errorf("%d failures: %v", failures, got)
		}
	}
}

// A fake is an authority and what is kept, in memory.
type fake struct {
	t      *testing.T
	mu     sync.Mutex
	err    error
	orders []string
	kept   map[types.NamespacedName]*corev1.Secret
	events []string
}

func (f *fake) Thumbprint(context.Context) (string, error) { return "thumb", nil }

func (f *fake) Issue(_ context.Context, hosts []string) (chain, key []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, strings.Join(hosts, ","))
	if f.err != nil {
		return nil, nil, f.err
	}
	chain, key = issued(f.t, time.Now(), time.Now().Add(90*day), hosts...)
	return chain, key, nil
}

func (f *fake) Have(_ context.Context, name types.NamespacedName) (*corev1.Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept[name], nil
}

func (f *fake) Keep(_ context.Context, name types.NamespacedName, chain, key []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept[name] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{managedBy: us}}, Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}}
	return nil
}

func (f *fake) put(name types.NamespacedName, s *corev1.Secret) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept[name] = s
}

func (f *fake) get(name types.NamespacedName) *corev1.Secret {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept[name]
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.kept)
}

// ordered are the orders so far.
func (f *fake) ordered() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.orders)
}

// eventsSoFar are the events so far.
func (f *fake) eventsSoFar() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// answer is what orders end with from now on, and none were there so far.
func (f *fake) answer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.orders = err, nil
}

func (f *fake) event(_ runtime.Object, _, reason, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, reason+": "+text)
}

// issuing runs an Issuer in a bubble.
func issuing(t *testing.T, private bool, story func(i *Issuer, f *fake)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{t: t, kept: map[types.NamespacedName]*corev1.Secret{}}
		i := NewIssuer(Settings{Authority: f, Keeper: f, Private: private, Event: f.event, Changed: func() {}})
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { i.Run(ctx) })
		story(i, f)
		cancel()
		group.Wait()
	})
}

func want(hosts ...string) Want {
	return Want{Secret: types.NamespacedName{Namespace: "n", Name: hosts[0]}, Hosts: hosts, Owner: &corev1.Secret{}}
}

// have is what is wanted, with what is kept.
func (f *fake) have(all ...Want) []Want {
	for i := range all {
		all[i].Have, _ = f.Have(context.Background(), all[i].Secret)
	}
	return all
}

// A namespace that wants a certificate for each of very many hosts leaves room for others.
func TestShareOfNamespaces(t *testing.T) {
	issuing(t, false, func(i *Issuer, f *fake) {
		var all []Want
		for n := range maxWants + 1 {
			all = append(all, want(fmt.Sprintf("h%d.many.org", n)))
		}
		polite := want("a.org")
		polite.Secret.Namespace = "m"
		i.Want(append(all, polite))
		time.Sleep(3 * time.Hour)
		if !slices.Contains(f.ordered(), "a.org") {
			t.Errorf("%d orders, none of them is the other namespace's", len(f.ordered()))
		}
	})
}

func TestIssueAndRenew(t *testing.T) {
	issuing(t, false, func(i *Issuer, f *fake) {
		i.Want(f.have(want("a.org", "b.org"), want("a.local"), want("a.org", "b.org")))
		time.Sleep(time.Minute)
		if i.Thumbprint() != "thumb" || strings.Join(f.ordered(), " ") != "a.org,b.org" || f.count() != 1 {
			t.Fatalf("thumbprint %q, orders %q", i.Thumbprint(), f.ordered())
		}
		if got := strings.Join(f.eventsSoFar(), "\n"); !strings.Contains(got, "CertificateRefused: No certificate is ordered for Secret a.local: host a.local is no public name") ||
			!strings.Contains(got, "CertificateIssued: The certificate for a.org,b.org is in Secret a.org") {
			t.Error(got)
		}
		i.Want(f.have(want("a.org", "b.org")))
		time.Sleep(50 * day)
		if len(f.ordered()) != 1 {
			t.Errorf("ordered again after 50 of 90 days: %q", f.ordered())
		}
		time.Sleep(11 * day)
		if len(f.ordered()) != 2 {
			t.Errorf("not ordered again after 61 of 90 days: %q", f.ordered())
		}
		// A host that is added is ordered with the others, soon.
		w := want("a.org", "b.org", "c.org")
		i.Want(f.have(w))
		time.Sleep(time.Minute)
		if len(f.ordered()) != 3 || f.ordered()[2] != "a.org,b.org,c.org" {
			t.Errorf("a further host: %q", f.ordered())
		}
	})
}

func TestFailures(t *testing.T) {
	issuing(t, true, func(i *Issuer, f *fake) {
		f.answer(&acme.AuthorizationError{Identifier: "a.org", Errors: []error{&acme.Error{Detail: "connection refused"}}})
		i.Want(f.have(want("a.org")))
		time.Sleep(36 * time.Minute) // at once, after 5, 10 and 20 minutes
		if len(f.ordered()) != 4 {
			t.Errorf("%d orders", len(f.ordered()))
		}
		if got := f.eventsSoFar()[0]; got != "CertificateFailed: No certificate for a.org, tried again in 5m0s: the authority could not validate a.org: connection refused" {
			t.Error(got)
		}
		time.Sleep(10 * day)
		if n := len(f.ordered()); n > 4+5+20 {
			t.Errorf("%d orders in ten days", n)
		}
		// What the authority asks for is waited for.
		i.Want(nil)
		f.answer(&acme.Error{StatusCode: 429, ProblemType: "urn:ietf:params:acme:error:rateLimited", Header: http.Header{"Retry-After": {"7200"}}})
		i.Want(f.have(want("a.org")))
		time.Sleep(110 * time.Minute)
		if len(f.ordered()) != 1 {
			t.Errorf("%d orders within the time that the authority asks for", len(f.ordered()))
		}
		f.answer(nil)
		time.Sleep(time.Hour)
		if f.count() != 1 {
			t.Error("not ordered after that")
		}
	})
}

// A Secret that is not made here is never written to, also if it comes while the order is
// under way.
func TestOthersSecrets(t *testing.T) {
	issuing(t, true, func(i *Issuer, f *fake) {
		theirs := secretOf(t, false, time.Now(), time.Now().Add(day), "a.org")
		w := want("a.org")
		w.Have = theirs
		i.Want([]Want{w})
		time.Sleep(day)
		w.Have = nil
		f.put(w.Secret, theirs) // and the watch is late
		i.Want([]Want{w})
		time.Sleep(day)
		if len(f.ordered()) > 0 || f.get(w.Secret) != theirs {
			t.Errorf("orders %q", f.ordered())
		}
		if len(f.eventsSoFar()) != 1 || !strings.Contains(f.eventsSoFar()[0], "left as it is") {
			t.Errorf("events %q", f.eventsSoFar())
		}
	})
}

func TestReason(t *testing.T) {
	if got := reason(fmt.Errorf("order: %w", &acme.Error{Detail: "too many certificates"})); got != "the authority says: too many certificates" {
		t.Error(got)
	}
	if got := reason(errors.New("no route to host")); got != "no route to host" {
		t.Error(got)
	}
}
