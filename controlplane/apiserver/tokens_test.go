package apiserver_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// knows reports whether the server knows the bearer of token.
func (w *world) knows(token string) bool {
	w.t.Helper()
	code, _, body := w.raw("GET", "/apis/authentication.k8s.io", "", "Authorization", "Bearer "+token)
	if code != 200 && code != 401 {
		w.t.Fatalf("%d %s", code, body)
	}
	if code == 401 && (!strings.Contains(body, `"message":"Unauthorized"`) || strings.Contains(body, token)) {
		w.t.Errorf("401 says %s", body)
	}
	return code == 200
}

func (w *world) boundToken(pod *corev1.Pod) string {
	w.t.Helper()
	r, err := w.admin.CoreV1().ServiceAccounts("default").CreateToken(w.ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}, metav1.CreateOptions{})
	w.must(err)
	return r.Status.Token
}

func TestServiceAccountTokens(t *testing.T) {
	w := newWorld(t)
	good := w.token("default", 600)
	for range 2 { // the second time from memory
		if !w.knows(good) {
			t.Fatal("a good token is refused")
		}
	}
	if w.knows(w.token("default", 600, "vault")) {
		t.Error("a token for another audience is let in")
	}
	parts := strings.Split(good, ".")
	b64 := base64.RawURLEncoding
	payload, err := b64.DecodeString(parts[1])
	w.must(err)
	head := func(alg string) string { return b64.EncodeToString([]byte(`{"alg":"` + alg + `"}`)) }
	for name, forged := range map[string]string{
		"alg none":          head("none") + "." + parts[1] + ".",
		"alg None":          head("None") + "." + parts[1] + "." + parts[2],
		"HMAC":              head("HS256") + "." + parts[1] + "." + parts[2],
		"changed":           parts[0] + "." + b64.EncodeToString(bytes.Replace(payload, []byte(":default:default"), []byte(":default:masters"), 1)) + "." + parts[2],
		"no signature":      parts[0] + "." + parts[1] + ".",
		"another signature": parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2])),
		"another key":       sign(t, payload),
		"another issuer":    sign(t, bytes.Replace(payload, []byte("kubernetes.default"), []byte("evil.example"), 1)),
		"rubbish":           "a.b.c",
	} {
		if w.knows(forged) {
			t.Errorf("%s is let in", name)
		}
	}
	pod := w.pod("p", "")
	bound := w.boundToken(pod)
	if !w.knows(bound) {
		t.Fatal("a pod's token is refused")
	}
	w.must(w.admin.CoreV1().Pods("default").Delete(w.ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	w.must(w.Cache().Sync(w.ctx))
	if w.knows(bound) {
		t.Error("the token of a pod that is gone is let in")
	}
	w.pod("p", "")
	w.must(w.Cache().Sync(w.ctx))
	if w.knows(bound) {
		t.Error("a new pod of the same name revives the old one's token")
	}
	w.must(w.admin.CoreV1().ServiceAccounts("default").Delete(w.ctx, "default", metav1.DeleteOptions{}))
	w.must(w.Cache().Sync(w.ctx))
	if w.knows(good) {
		t.Error("the token of an account that is gone is let in")
	}
	w.account("default", "default")
	w.must(w.Cache().Sync(w.ctx))
	if w.knows(good) {
		t.Error("a new account of the same name revives the old one's token")
	}
}

func sign(t *testing.T, payload []byte) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	j, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	out, err := j.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A pod's usual token outlives what was asked for, since some programs read it
// once; what is answered is what was asked for.
func TestProjectedTokensAreExtended(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("p", "")
	r, err := w.admin.CoreV1().ServiceAccounts("default").CreateToken(w.ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: new(int64(3607)), BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name}}}, metav1.CreateOptions{})
	w.must(err)
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(r.Status.Token, ".")[1])
	w.must(err)
	var c struct {
		Exp, Iat   int64
		Kubernetes struct{ Warnafter int64 } `json:"kubernetes.io"`
	}
	w.must(json.Unmarshal(payload, &c))
	if c.Exp-c.Iat != 365*24*3600 || c.Kubernetes.Warnafter-c.Iat != 3607 || r.Status.ExpirationTimestamp.Unix()-c.Iat != 3607 {
		t.Errorf("%s", payload)
	}
}

func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := newBubble(t)
		defer stop()
		tok := w.token("default", 600)
		if !w.knows(tok) {
			t.Fatal("refused")
		}
		time.Sleep(600*time.Second + 2*time.Minute)
		if w.knows(tok) {
			t.Error("an old token is let in")
		}
	})
}

func TestBootstrapTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := newBubble(t)
		defer stop()
		put := func(id string, change map[string]string) {
			data := map[string]string{"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
			for k, v := range change {
				data[k] = v
			}
			_, err := w.admin.CoreV1().Secrets("kube-system").Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken, StringData: data}, metav1.CreateOptions{})
			w.must(err)
		}
		put("aaaaaa", map[string]string{"auth-extra-groups": "system:bootstrappers:x", "expiration": time.Now().Add(time.Hour).Format(time.RFC3339)})
		put("bbbbbb", map[string]string{"usage-bootstrap-authentication": "false"})
		put("cccccc", map[string]string{"expiration": time.Now().Add(-time.Second).Format(time.RFC3339)})
		put("dddddd", map[string]string{"auth-extra-groups": "system:masters"})
		put("eeeeee", map[string]string{"token-id": "aaaaaa"})
		w.must(w.Cache().Sync(w.ctx))
		for token, want := range map[string]bool{
			"aaaaaa.0123456789abcdef": true, "aaaaaa.0123456789abcdee": false, "aaaaaa.": false, "aaaaaa.0123456789ABCDEF": false,
			"bbbbbb.0123456789abcdef": false, "cccccc.0123456789abcdef": false, "dddddd.0123456789abcdef": false, "eeeeee.0123456789abcdef": false, "ffffff.0123456789abcdef": false,
		} {
			if got := w.knows(token); got != want {
				t.Errorf("%s: %v", token, got)
			}
		}
		r, err := w.admin.AuthenticationV1().TokenReviews().Create(w.ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "aaaaaa.0123456789abcdef"}}, metav1.CreateOptions{})
		w.must(err)
		if r.Status.User.Username != "system:bootstrap:aaaaaa" || strings.Join(r.Status.User.Groups, " ") != "system:bootstrappers system:bootstrappers:x system:authenticated" {
			t.Errorf("%+v", r.Status)
		}
		time.Sleep(time.Hour + time.Second)
		if w.knows("aaaaaa.0123456789abcdef") {
			t.Error("an expired token is let in")
		}
	})
}
