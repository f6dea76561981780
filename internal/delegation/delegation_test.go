package delegation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestCacheIsBounded(t *testing.T) {
	var c cache[int]
	for i := range maxCached * 2 {
		_, _ = c.get(t.Context(), fmt.Sprint(i), func(context.Context) (int, time.Duration, error) { return i, time.Hour, nil })
	}
	if len(c.all) > maxCached {
		t.Errorf("%d entries", len(c.all))
	}
	asked := 0
	for range 2 {
		_, _ = c.get(t.Context(), "same", func(context.Context) (int, time.Duration, error) { asked++; return 1, time.Hour, nil })
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestReviewsAreBounded: whoever sends many unknown tokens takes few places of the API
// server, and what waits for one gives up.
func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache[int]
		var now, most, failed atomic.Int64
		for i := range 10 * maxReviews {
			go func() {
				_, err := c.get(t.Context(), fmt.Sprint(i), func(ctx context.Context) (int, time.Duration, error) {
					most.Store(max(most.Load(), now.Add(1)))
					defer now.Add(-1)
					<-ctx.Done() // the API server hangs
					return 0, 0, ctx.Err()
				})
				if err != nil {
					failed.Add(1)
				}
			}()
		}
		time.Sleep(2 * reviewTime)
		synctest.Wait()
		if most.Load() != maxReviews || failed.Load() != 10*maxReviews {
			t.Errorf("%d at once, %d of %d ended", most.Load(), failed.Load(), 10*maxReviews)
		}
	})
}

// An authority makes certificates of clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	a := authority{t: t}
	a.cert, a.key = a.make(&x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour)}, nil, nil)
	return a
}

func (a authority) make(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a authority) client(name string, groups ...string) *x509.Certificate {
	c, _ := a.make(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	return c
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// TestAuthenticate: who a request is from, by certificate, by a front proxy's headers,
// and by token.
func TestAuthenticate(t *testing.T) {
	clients, proxies, other := newAuthority(t), newAuthority(t), newAuthority(t)
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if review.Spec.Token == "good" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "token-user"}}
		}
		return true, review, nil
	})
	d := &Delegator{Authentication: kube, ClientCA: clients.pool, Proxy: func() *FrontProxy {
		return &FrontProxy{CA: proxies.pool(), Names: []string{"front"}, User: []string{"X-Remote-User"}, UID: []string{"X-Remote-Uid"},
			Group: []string{"X-Remote-Group"}, Extra: []string{"X-Remote-Extra-"}}
	}}
	headers := http.Header{"X-Remote-User": {"jane"}, "X-Remote-Group": {"dev"}, "X-Remote-Extra-Scope": {"a", "b"}, "X-Remote-Uid": {"7"}}
	for name, c := range map[string]struct {
		cert    *x509.Certificate
		headers http.Header
		want    string
	}{
		"nobody":                          {nil, nil, "no"},
		"a client":                        {clients.client("admin", "system:masters"), nil, "admin [system:authenticated system:masters] "},
		"a client without a name":         {clients.client(""), nil, "no"},
		"another authority's":             {other.client("admin"), nil, "no"},
		"a proxy's user":                  {proxies.client("front"), headers, "jane [dev system:authenticated] 7 map[scope:[a b]]"},
		"a proxy without a user":          {proxies.client("front"), nil, "no"},
		"a proxy of another name":         {proxies.client("back"), headers, "no"},
		"a client with a proxy's headers": {clients.client("admin"), headers, "admin [system:authenticated] "},
		"headers alone":                   {nil, headers, "no"},
		"a token":                         {nil, http.Header{"Authorization": {"Bearer good"}}, "token-user [] "},
		"an unknown token":                {nil, http.Header{"Authorization": {"Bearer bad"}}, "no"},
		"a certificate and a token":       {other.client("x"), http.Header{"Authorization": {"bearer good"}}, "token-user [] "},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		if c.headers != nil {
			r.Header = c.headers
		}
		if c.cert != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
		}
		u, ok, err := d.Authenticate(r)
		got := "no"
		if ok {
			got = fmt.Sprint(u.Username, " ", u.Groups, " ", u.UID)
			if len(u.Extra) > 0 {
				got += fmt.Sprint(" ", u.Extra)
			}
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestAuthorize: the API server is asked once for the same question, and again for
// another user.
func TestAuthorize(t *testing.T) {
	asked := 0
	kube := fake.NewClientset()
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = review.Spec.User == "jane" && review.Spec.NonResourceAttributes.Path == "/metrics"
		return true, review, nil
	})
	d := &Delegator{Authorization: kube}
	for _, c := range []struct {
		user, path string
		want       bool
	}{{"jane", "/metrics", true}, {"jane", "/metrics", true}, {"jane", "/configz", false}, {"joe", "/metrics", false}, {"joe", "/metrics", false}} {
		got, err := d.Authorize(t.Context(), authenticationv1.UserInfo{Username: c.user}, nil, &authorizationv1.NonResourceAttributes{Verb: "get", Path: c.path})
		if err != nil || got != c.want {
			t.Errorf("%s %s: %v, %v", c.user, c.path, got, err)
		}
	}
	if asked != 3 {
		t.Errorf("asked %d times for 3 questions", asked)
	}
	if got, _ := (&Delegator{}).Authorize(t.Context(), authenticationv1.UserInfo{Username: "jane"}, nil, nil); got {
		t.Error("without an API server everything is allowed")
	}
}
