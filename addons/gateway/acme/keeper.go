package acme

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/references"
)

// Secrets keeps certificates and the account in Secrets. All of them are applied by their
// names, which is all that the authorizer allows.
type Secrets struct{ Client kubernetes.Interface }

// Have is of Keeper.
func (s Secrets) Have(ctx context.Context, name types.NamespacedName) (*corev1.Secret, error) {
	have, err := s.Client.CoreV1().Secrets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return have, err
}

// Keep is of Keeper.
func (s Secrets) Keep(ctx context.Context, name types.NamespacedName, chain, key []byte) error {
	have, err := s.Have(ctx, name)
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	if have != nil && have.Labels[managedBy] != us {
		return errNotOurs
	}
	return s.apply(ctx, name, corev1.SecretTypeTLS, map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key})
}

func (s Secrets) apply(ctx context.Context, name types.NamespacedName, of corev1.SecretType, data map[string][]byte) error {
	want := applycorev1.Secret(name.Name, name.Namespace).WithLabels(map[string]string{managedBy: us}).WithType(of).WithData(data)
	if _, err := s.Client.CoreV1().Secrets(name.Namespace).Apply(ctx, want, metav1.ApplyOptions{FieldManager: us, Force: true}); err != nil {
		return fmt.Errorf("keep Secret %s: %w", name, err)
	}
	return nil
}

var accountName = types.NamespacedName{Namespace: references.GatewayNamespace, Name: references.ACMEAccount}

// accountKey is where the account's key is in its Secret.
const accountKey = "key.pem"

// Load is of Account.
func (s Secrets) Load(ctx context.Context) ([]byte, error) {
	secret, err := s.Have(ctx, accountName)
	if secret == nil || err != nil {
		return nil, err
	}
	return secret.Data[accountKey], nil
}

// Store is of Account.
func (s Secrets) Store(ctx context.Context, key []byte) error {
	return s.apply(ctx, accountName, corev1.SecretTypeOpaque, map[string][]byte{accountKey: key})
}
