package bootstraptoken

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDetached: the signature of known words, as upstream's library computes it.
func TestDetached(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
	got, err := detached("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode")
	if err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
}

// token is a Secret of a token that may sign; change are its other data.
func token(id string, change map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretPrefix + id}, Data: map[string][]byte{
		idKey: []byte(id), secretKey: []byte("0123456789abcdef"), signingKey: []byte("true")}}
	for k, v := range change {
		s.Data[k] = []byte(v)
	}
	return s
}

func TestSign(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) map[string]string {
		return map[string]string{expirationKey: now.Add(d).Format(time.RFC3339)}
	}
	for name, c := range map[string]struct {
		secrets []*corev1.Secret
		want    string
		next    time.Duration
	}{
		"no token":             {nil, "[kubeconfig other]", 0},
		"one":                  {[]*corev1.Secret{token("aaaaaa", nil)}, "[jws-kubeconfig-aaaaaa kubeconfig other]", 0},
		"two that end":         {[]*corev1.Secret{token("aaaaaa", at(time.Hour)), token("bbbbbb", at(time.Minute))}, "[jws-kubeconfig-aaaaaa jws-kubeconfig-bbbbbb kubeconfig other]", time.Minute},
		"one has ended":        {[]*corev1.Secret{token("aaaaaa", at(-time.Second))}, "[kubeconfig other]", 0},
		"no time":              {[]*corev1.Secret{token("aaaaaa", map[string]string{expirationKey: "soon"})}, "[kubeconfig other]", 0},
		"it does not sign":     {[]*corev1.Secret{token("aaaaaa", map[string]string{signingKey: "yes"})}, "[kubeconfig other]", 0},
		"another's name":       {[]*corev1.Secret{token("aaaaaa", map[string]string{idKey: "cccccc"})}, "[kubeconfig other]", 0},
		"a secret of any form": {[]*corev1.Secret{token("aaaaaa", map[string]string{secretKey: "tokenSecret"})}, "[jws-kubeconfig-aaaaaa kubeconfig other]", 0},
		"no secret":            {[]*corev1.Secret{token("aaaaaa", map[string]string{secretKey: ""})}, "[kubeconfig other]", 0},
		"an id too long":       {[]*corev1.Secret{token("aaaaaaa", nil)}, "[kubeconfig other]", 0},
	} {
		data := map[string]string{kubeconfigKey: "k", "other": "o", signaturePrefix + "oldold": "x"}
		got, next, err := sign(data, c.secrets, now)
		if keys := fmt.Sprint(slices.Sorted(maps.Keys(got))); err != nil || keys != c.want || next != c.next {
			t.Errorf("%s: %s, %v, %v", name, keys, next, err)
		}
		if len(data) != 3 {
			t.Errorf("%s: the stored data changed", name)
		}
	}
}
