package controllermanager

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

// TestTokensInSecrets: a Secret that asks for a token gets one that lets its
// bearer in as the account, until the Secret, its label or the account says no.
func TestTokensInSecrets(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
		defer cancel()
		s, stop := apitest.New(t, func(c *apiserver.Config) { c.ServiceAccountKey = key })
		defer stop()
		m, err := New(Config{Kube: s.Config(), TokenKey: key, RootCA: []byte("authority"),
			Controllers: []string{"serviceaccount-token-controller", "legacy-serviceaccount-token-cleaner-controller"}})
		if err != nil {
			t.Fatal(err)
		}
		running, end := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := m.Run(running); err != nil {
				t.Error(err)
			}
		}()
		defer func() { end(); <-done }()
		admin := s.Client(t)
		accounts, secrets := admin.CoreV1().ServiceAccounts("default"), admin.CoreV1().Secrets("default")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		account, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "bot"}}, metav1.CreateOptions{})
		must(err)
		ask := func(name, of string) {
			_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: of}},
				Type: corev1.SecretTypeServiceAccountToken}, metav1.CreateOptions{})
			must(err)
		}
		ask("bot-token", "bot")
		ask("nobodys", "nobody")
		<-time.After(time.Minute)
		got, err := secrets.Get(ctx, "bot-token", metav1.GetOptions{})
		must(err)
		if len(got.Data["token"]) == 0 || string(got.Data["ca.crt"]) != "authority" || string(got.Data["namespace"]) != "default" || got.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID) {
			t.Fatalf("filled in %v %v", got.Annotations, got.Data)
		}
		if _, err := secrets.Get(ctx, "nobodys", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Secret of an account that is not there: %v", err)
		}
		bearer := s.Config()
		bearer = &rest.Config{Host: bearer.Host, Dial: bearer.Dial, TLSClientConfig: bearer.TLSClientConfig, BearerToken: string(got.Data["token"])}
		var warned warnings
		bearer.WarningHandler = &warned
		bot, err := kubernetes.NewForConfig(bearer)
		must(err)
		if _, err := bot.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:serviceaccount:default:bot" cannot list`) {
			t.Errorf("with the token: %v", err)
		}
		account.Secrets = []corev1.ObjectReference{{Name: "bot-token"}}
		_, err = accounts.Update(ctx, account, metav1.UpdateOptions{})
		must(err)
		if len(warned) > 0 {
			t.Errorf("warned of a token that was asked for: %q", warned)
		}
		if _, err := bot.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) || len(warned) != 1 || warned[0] != "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens." {
			t.Errorf("with a token that nobody asked for: %v, %q", err, warned)
		}
		got, err = secrets.Get(ctx, "bot-token", metav1.GetOptions{})
		must(err)
		if used := got.Labels["kubernetes.io/legacy-token-last-used"]; used != time.Now().UTC().Format("2006-01-02") {
			t.Errorf("last used %q", used)
		}
		got.Labels["kubernetes.io/legacy-token-invalid-since"] = "2000-01-01"
		got, err = secrets.Update(ctx, got, metav1.UpdateOptions{})
		must(err)
		if _, err := bot.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("with a token that is marked invalid: %v", err)
		}
		delete(got.Labels, "kubernetes.io/legacy-token-invalid-since")
		_, err = secrets.Update(ctx, got, metav1.UpdateOptions{})
		must(err)
		if _, err := bot.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("with a token that is no longer marked: %v", err)
		}
		since, err := admin.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
		if err != nil || since.Data["since"] != time.Now().UTC().Format("2006-01-02") {
			t.Errorf("tracking since %v, %v", since, err)
		}
		must(accounts.Delete(ctx, "bot", metav1.DeleteOptions{}))
		if _, err := bot.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("when the account is gone: %v", err)
		}
		<-time.After(time.Minute)
		if _, err := secrets.Get(ctx, "bot-token", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Secret of an account that is gone: %v", err)
		}
	})
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestBootstrapTokens: cluster-info is signed by every token that may sign, and a token
// that has expired is deleted, its signature too.
func TestBootstrapTokens(t *testing.T) {
	inCluster(t, []string{"bootstrapsigner", "tokencleaner", "serviceaccount-controller"}, func(c *cluster) {
		secrets, maps := c.client.CoreV1().Secrets("kube-system"), c.client.CoreV1().ConfigMaps("kube-public")
		_, err := maps.Create(c.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "clusters: []\n"}}, metav1.CreateOptions{})
		c.no(err)
		for id, ends := range map[string]time.Duration{"aaaaaa": time.Hour, "bbbbbb": 0} {
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token", StringData: map[string]string{
				"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"}}
			if ends > 0 {
				s.StringData["expiration"] = time.Now().Add(ends).Format(time.RFC3339)
			}
			_, err := secrets.Create(c.ctx, s, metav1.CreateOptions{})
			c.no(err)
		}
		signed := func(a, b bool) func() (bool, error) {
			return func() (bool, error) {
				got, err := maps.Get(c.ctx, "cluster-info", metav1.GetOptions{})
				c.no(err)
				return (got.Data["jws-kubeconfig-aaaaaa"] != "") == a && (got.Data["jws-kubeconfig-bbbbbb"] != "") == b, fmt.Errorf("it holds %v", got.Data)
			}
		}
		c.until("both have signed", signed(true, true))
		time.Sleep(time.Hour)
		c.until("one has expired", signed(false, true))
		if _, err := secrets.Get(c.ctx, "bootstrap-token-aaaaaa", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the expired token: %v", err)
		}
		_, err = secrets.Get(c.ctx, "bootstrap-token-bbbbbb", metav1.GetOptions{})
		c.no(err)
	})
}
