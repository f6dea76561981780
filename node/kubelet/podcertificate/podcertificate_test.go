package podcertificate

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// A node has one pod with a source, and a manager.
type node struct {
	*testing.T
	*Manager
	client  *fake.Clientset
	group   sync.WaitGroup
	changed int
	events  []string
	pod     *corev1.Pod
	of      *corev1.PodCertificateProjection
}

func newNode(t *testing.T) *node {
	n := &node{T: t, client: fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa", UID: "sa-uid"}}),
		pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-uid"}, Spec: corev1.PodSpec{ServiceAccountName: "sa"}},
		of:  &corev1.PodCertificateProjection{SignerName: "example.com/signer", KeyType: "ED25519"}}
	made := 0
	n.client.PrependReactor("create", "podcertificaterequests", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.(ktesting.CreateAction).GetObject().(*certificatesv1beta1.PodCertificateRequest)
		made++
		r.Name = fmt.Sprint(r.GenerateName, made)
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); n.group.Wait() })
	n.Manager = New(Config{Client: n.client, Node: "n",
		NodeUID: func(context.Context) (types.UID, error) { return "n-uid", nil },
		Changed: func(types.UID) { n.changed++ },
		Follow:  func(f func(context.Context)) { n.group.Go(func() { f(ctx) }) },
		Event:   func(_ *corev1.Pod, _, reason, message string) { n.events = append(n.events, reason+": "+message) },
	})
	return n
}

// get asks for the credentials, and wants this error, "" for none.
func (n *node) get(want string) (Credentials, time.Time) {
	n.Helper()
	c, next, err := n.Get(n.Context(), n.pod, "v", 0, n.of)
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		n.Fatalf("got error %q, want %q", got, want)
	}
	synctest.Wait()
	return c, next
}

// request is the newest.
func (n *node) request() *certificatesv1beta1.PodCertificateRequest {
	n.Helper()
	l, err := n.client.CertificatesV1beta1().PodCertificateRequests("default").List(n.Context(), metav1.ListOptions{})
	if err != nil || len(l.Items) != 1 {
		n.Fatalf("%d requests, want 1: %v", len(l.Items), err)
	}
	return &l.Items[0]
}

func (n *node) gone() {
	n.Helper()
	r := n.request()
	if err := n.client.CertificatesV1beta1().PodCertificateRequests("default").Delete(n.Context(), r.Name, metav1.DeleteOptions{}); err != nil {
		n.Fatal(err)
	}
	synctest.Wait()
}

// decide answers as a signer does.
func (n *node) decide(condition string, change func(*certificatesv1beta1.PodCertificateRequestStatus)) {
	n.Helper()
	r := n.request()
	r.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Why", Message: "because"}}
	if change != nil {
		change(&r.Status)
	}
	if _, err := n.client.CertificatesV1beta1().PodCertificateRequests("default").UpdateStatus(n.Context(), r, metav1.UpdateOptions{}); err != nil {
		n.Fatal(err)
	}
	synctest.Wait()
}

// issue signs a certificate of a day for the request, with text around it.
func (n *node) issue() {
	n.Helper()
	stub, err := x509.ParseCertificateRequest(n.request().Spec.StubPKCS10Request)
	if err != nil {
		n.Fatal(err)
	}
	key, _, err := newKey("ED25519")
	if err != nil {
		n.Fatal(err)
	}
	block, _ := pem.Decode(key)
	signer, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		n.Fatal(err)
	}
	now := time.Now()
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(nil, cert, cert, stub.PublicKey, signer)
	if err != nil {
		n.Fatal(err)
	}
	chain := "text for nobody\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"also": "not"}, Bytes: der}))
	n.decide(certificatesv1beta1.PodCertificateRequestConditionTypeIssued, func(s *certificatesv1beta1.PodCertificateRequestStatus) {
		s.CertificateChain = chain
		s.NotBefore, s.NotAfter = new(metav1.NewTime(now)), new(metav1.NewTime(now.Add(24*time.Hour)))
		s.BeginRefreshAt = new(metav1.NewTime(now.Add(12 * time.Hour)))
	})
}

const pending = "credential bundle is not issued yet"

// TestIssued: a source has a key and its certificate once a signer has decided, and the
// next before that ends.
func TestIssued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.get(pending)
		n.get(pending) // one request is enough
		r := n.request()
		if s := r.Spec; s.PodName != "p" || s.PodUID != "p-uid" || s.ServiceAccountName != "sa" || s.ServiceAccountUID != "sa-uid" || s.NodeName != "n" || s.NodeUID != "n-uid" ||
			r.OwnerReferences[0].UID != "p-uid" {
			t.Errorf("asked for %+v", r)
		}
		n.issue()
		if n.changed != 1 {
			t.Errorf("told %d times of the decision, want 1", n.changed)
		}
		first, next := n.get("")
		if text := string(first.Chain); !strings.HasPrefix(text, "-----BEGIN CERTIFICATE-----\n") || strings.Contains(text, "also") || !strings.HasPrefix(string(first.Key), "-----BEGIN PRIVATE KEY-----") {
			t.Errorf("got %s %s", first.Key, first.Chain)
		}
		if left := time.Until(next); left < 12*time.Hour || left > 12*time.Hour+jitter {
			t.Errorf("asked again in %s", left)
		}
		n.gone() // the cleaner
		time.Sleep(time.Until(next))
		if same, _ := n.get(""); string(same.Key) != string(first.Key) {
			t.Error("another key before there is a certificate for it")
		}
		n.issue()
		second, _ := n.get("")
		if string(second.Key) == string(first.Key) || string(second.Chain) == string(first.Chain) || len(n.events) != 0 {
			t.Errorf("not renewed, or told %q", n.events)
		}
	})
}

// TestNotRenewed: a certificate that is not renewed stays, and the pod is told twice.
func TestNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.get(pending)
		n.issue()
		_, next := n.get("")
		n.gone()
		for time.Sleep(time.Until(next)); len(n.events) < 2; time.Sleep(time.Until(next)) {
			_, next = n.get("")
			if time.Until(next) > lookAgain {
				t.Fatalf("asked again in %s", time.Until(next))
			}
		}
		n.get("")
		want := []string{"CertificateOverdueForRefresh: PodCertificate refresh overdue", "CertificateExpired: PodCertificate expired"}
		if len(n.events) != 2 || n.events[0] != want[0] || n.events[1] != want[1] {
			t.Errorf("told %q, want %q", n.events, want)
		}
		n.Forget(n.pod.UID)
		n.gone()
		n.get(pending)
	})
}

// TestDecidedAgainst: no signer is asked twice that has said no; a request that somebody
// deleted is made anew.
func TestDecidedAgainst(t *testing.T) {
	for condition, want := range map[string][2]string{
		certificatesv1beta1.PodCertificateRequestConditionTypeDenied: {`PodCertificateRequest was permanently denied: reason="Why" message="because"`, "was denied"},
		certificatesv1beta1.PodCertificateRequestConditionTypeFailed: {`PodCertificateRequest was permanently failed: reason="Why" message="because"`, "failed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.get(pending)
			n.gone()
			n.get(pending)
			name := n.request().Name
			n.decide(condition, nil)
			n.get(want[0])
			n.get(want[0])
			event := condition + ": PodCertificateRequest default/" + name + " " + want[1] + `, reason="Why", message="because"`
			if len(n.events) != 1 || n.events[0] != event {
				t.Errorf("told %q, want %q", n.events, event)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	for _, kind := range []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		_, stub, err := newKey(kind)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		r, err := x509.ParseCertificateRequest(stub)
		if err != nil || r.CheckSignature() != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, _, err := newKey("DSA"); err == nil {
		t.Error("a key of no known type")
	}
}

// TestStates: sources are counted by their signer and state, in upstream's words.
func TestStates(t *testing.T) {
	is := func(n *node, want string) {
		n.Helper()
		states := n.States(time.Now())
		if got := states[State{"example.com/signer", want}]; got != 1 || len(states) != 1 {
			n.Errorf("%v, want one that is %s", states, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		if s := n.States(time.Now()); len(s) != 0 {
			t.Errorf("%v before there is any", s)
		}
		n.get(pending)
		is(n, "not_yet_issued")
		n.issue()
		n.get("")
		is(n, "fresh")
		time.Sleep(12*time.Hour + jitter + overdue)
		is(n, "overdue_for_refresh")
		time.Sleep(12 * time.Hour)
		is(n, "expired")
		n.Forget(n.pod.UID)
		if s := n.States(time.Now()); len(s) != 0 {
			t.Errorf("%v of a pod that is gone", s)
		}
	})
	for condition, want := range map[string]string{"Denied": "denied", "Failed": "failed"} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.get(pending)
			n.decide(condition, nil)
			if _, _, err := n.Get(n.Context(), n.pod, "v", 0, n.of); err == nil {
				t.Error("issued")
			}
			is(n, want)
		})
	}
}
