// Package serviceaccounttoken is the serviceaccount-token-controller. It reads
// ServiceAccounts and the Secrets that hold their tokens; it fills in tokens
// that are missing, deletes Secrets of accounts that are gone, and takes Secrets
// that are gone out of accounts.
package serviceaccounttoken

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "serviceaccount-token-controller"

// A key is a Secret, and the account it says that it belongs to.
type key struct {
	namespace, name, account string
	uid                      types.UID // of the account; "" for any
}

// Secrets is the informer of the Secrets that hold tokens, and of no others.
func Secrets(f informers.SharedInformerFactory) cache.SharedIndexInformer {
	return f.InformerFor(&corev1.Secret{}, func(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredSecretInformer(c, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		})
	})
}

// New returns the controller, which signs with sign and tells whose certificates
// to believe.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, sign crypto.Signer, ca []byte) (*controller.Controller[key], error) {
	signer, err := newSigner(sign)
	if err != nil {
		return nil, fmt.Errorf("service-account signing key: %w", err)
	}
	accounts := f.Core().V1().ServiceAccounts()
	secrets := Secrets(f)
	r := &reconciler{accounts.Lister(), corelisters.NewSecretLister(secrets.GetIndexer()), client, signer, ca}
	return &controller.Controller[key]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[key]{
			{Informer: secrets, Keys: func(o metav1.Object) []key { return []key{keyOf(o)} }},
			{Informer: accounts.Informer(), Keys: r.of},
		},
		Reconcile: r.reconcile,
	}, nil
}

func keyOf(o metav1.Object) key {
	notes := o.GetAnnotations()
	return key{o.GetNamespace(), o.GetName(), notes[corev1.ServiceAccountNameKey], types.UID(notes[corev1.ServiceAccountUIDKey])}
}

type reconciler struct {
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
	client   kubernetes.Interface
	signer   *signer
	ca       []byte
}

// of are the Secrets of an account.
func (r *reconciler) of(account metav1.Object) (out []key) {
	all, err := r.secrets.Secrets(account.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, s := range all {
		if k := keyOf(s); k.account == account.GetName() {
			out = append(out, k)
		}
	}
	return out
}

func (r *reconciler) reconcile(ctx context.Context, k key) (time.Duration, error) {
	secret, err := r.secrets.Secrets(k.namespace).Get(k.name)
	if apierrors.IsNotFound(err) {
		return 0, r.unlist(ctx, k)
	}
	if err != nil {
		return 0, err
	}
	now := keyOf(secret)
	account, err := r.account(ctx, now)
	if err != nil {
		return 0, err
	}
	if account == nil {
		err := r.client.CoreV1().Secrets(k.namespace).Delete(ctx, k.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil
		}
		return 0, err
	}
	return 0, r.fill(ctx, secret, account)
}

// account is the one that a Secret belongs to, nil when it is gone. The cache
// may not know it yet.
func (r *reconciler) account(ctx context.Context, k key) (*corev1.ServiceAccount, error) {
	is := func(sa *corev1.ServiceAccount, err error) bool {
		return err == nil && (k.uid == "" || k.uid == sa.UID)
	}
	sa, err := r.accounts.ServiceAccounts(k.namespace).Get(k.account)
	if is(sa, err) {
		return sa, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	sa, err = r.client.CoreV1().ServiceAccounts(k.namespace).Get(ctx, k.account, metav1.GetOptions{})
	switch {
	case is(sa, err):
		return sa, nil
	case apierrors.IsNotFound(err):
		err = nil
	}
	return nil, err
}

// lacks says what is to be written into a Secret.
func (r *reconciler) lacks(s *corev1.Secret) (ca, namespace, token bool) {
	return len(r.ca) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], r.ca),
		len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0, len(s.Data[corev1.ServiceAccountTokenKey]) == 0
}

func (r *reconciler) fill(ctx context.Context, secret *corev1.Secret, account *corev1.ServiceAccount) error {
	ca, namespace, token := r.lacks(secret)
	if !ca && !namespace && !token {
		return nil
	}
	next := secret.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	if ca {
		next.Data[corev1.ServiceAccountRootCAKey] = r.ca
	}
	if namespace {
		next.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if token {
		made, err := r.signer.token(account, secret)
		if err != nil {
			return fmt.Errorf("sign token of %s/%s: %w", account.Namespace, account.Name, err)
		}
		next.Data[corev1.ServiceAccountTokenKey] = []byte(made)
	}
	next.Annotations[corev1.ServiceAccountNameKey] = account.Name
	next.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err := r.client.CoreV1().Secrets(secret.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change comes as an event
	}
	return err
}

// unlist takes a Secret that is gone out of its account.
func (r *reconciler) unlist(ctx context.Context, k key) error {
	sa, err := r.accounts.ServiceAccounts(k.namespace).Get(k.account)
	if err != nil || k.uid != "" && k.uid != sa.UID || !lists(sa, k.name) {
		return nil
	}
	api := r.client.CoreV1().ServiceAccounts(k.namespace)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		sa, err := api.Get(ctx, k.account, metav1.GetOptions{})
		if err != nil || k.uid != "" && k.uid != sa.UID || !lists(sa, k.name) {
			return err
		}
		sa.Secrets = slices.DeleteFunc(sa.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == k.name })
		_, err = api.Update(ctx, sa, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func lists(sa *corev1.ServiceAccount, secret string) bool {
	return slices.ContainsFunc(sa.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == secret })
}
