package bootstraptoken

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Cleaner is the name of the controller that deletes expired tokens.
const Cleaner = "token-cleaner-controller"

// NewCleaner returns the controller; its keys are Secrets.
func NewCleaner(client kubernetes.Interface) *controller.Controller[cache.ObjectName] {
	secrets := tokenSecrets(client)
	self := func(o metav1.Object) []cache.ObjectName { return []cache.ObjectName{cache.MetaObjectToName(o)} }
	return &controller.Controller[cache.ObjectName]{
		Name:  Cleaner,
		Feeds: []func(context.Context, func(), func(cache.ObjectName)) error{feed(self, secrets)},
		Reconcile: controller.Existing(secrets.GetStore(), func(ctx context.Context, s *corev1.Secret) (time.Duration, error) {
			is, in := expired(s, time.Now())
			if !is {
				return in, nil
			}
			slog.InfoContext(ctx, "delete a bootstrap token that has expired, or whose expiration is no time such as 2026-01-02T15:04:05Z",
				"secret", s.Name, "expiration", string(s.Data[expirationKey]))
			err := client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return 0, nil // its event brings what has become of it
			}
			return 0, err
		}),
	}
}
