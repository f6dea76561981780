// Package bootstraptoken is the bootstrap-signer-controller and the
// token-cleaner-controller. They read the Secrets of bootstrap tokens in kube-system;
// the signer reads the ConfigMap kube-public/cluster-info and writes a signature of
// its kubeconfig for each token, the cleaner deletes the tokens that have expired.
package bootstraptoken

import (
	"context"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
	"knarr/internal/run"
)

const (
	secretType   = "bootstrap.kubernetes.io/token"
	secretPrefix = "bootstrap-token-"

	idKey         = "token-id"
	secretKey     = "token-secret"
	expirationKey = "expiration"
	signingKey    = "usage-bootstrap-signing"
)

// tokenSecrets follows the Secrets of bootstrap tokens. They are few, and nobody else
// needs them.
func tokenSecrets(client kubernetes.Interface) cache.SharedIndexInformer {
	return coreinformers.NewFilteredSecretInformer(client, metav1.NamespaceSystem, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", secretType).String()
	})
}

// feed runs informers for a controller until ctx ends, and adds the keys of the object
// of every event.
func feed[K comparable](keys func(metav1.Object) []K, informers ...cache.SharedIndexInformer) func(context.Context, func(), func(K)) error {
	return func(ctx context.Context, ready func(), add func(K)) error {
		on := func(o any) {
			if m, ok := informer.Object(o).(metav1.Object); ok {
				for _, key := range keys(m) {
					add(key)
				}
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		var wg run.Group
		defer wg.Wait()
		defer cancel()
		var synced []cache.DoneChecker
		for _, inf := range informers {
			reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: on, UpdateFunc: func(_, o any) { on(o) }, DeleteFunc: on})
			if err != nil {
				return fmt.Errorf("watch bootstrap tokens: %w", err)
			}
			synced = append(synced, reg.HasSyncedChecker())
			wg.Go("bootstrap tokens: watch", func() { inf.RunWithContext(ctx) })
		}
		if cache.WaitFor(ctx, "", synced...) {
			ready()
		}
		<-ctx.Done()
		return nil
	}
}

// expired reports whether the token has expired, and otherwise when it will; 0 is
// never. A time that cannot be read counts as past.
func expired(s *corev1.Secret, now time.Time) (is bool, in time.Duration) {
	text := string(s.Data[expirationKey])
	if text == "" {
		return false, 0
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return true, 0
	}
	if left := at.Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

var idForm = regexp.MustCompile(`^[a-z0-9]{6}$`)

// signs gives the token that a Secret holds, if it may sign. As upstream's signer has
// it, a secret of any form does; to authenticate with it needs the form of a token.
func signs(s *corev1.Secret, now time.Time) (id, secret string, ok bool) {
	id, secret = string(s.Data[idKey]), string(s.Data[secretKey])
	if s.Name != secretPrefix+id || !idForm.MatchString(id) || secret == "" || string(s.Data[signingKey]) != "true" {
		return "", "", false
	}
	is, _ := expired(s, now)
	return id, secret, !is
}
