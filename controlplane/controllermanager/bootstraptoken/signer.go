package bootstraptoken

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Signer is the name of the controller of cluster-info's signatures.
const Signer = "bootstrap-signer-controller"

const (
	clusterInfo     = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	signaturePrefix = "jws-kubeconfig-"
)

type signer struct {
	client        kubernetes.Interface
	info, secrets cache.SharedIndexInformer
}

// NewSigner returns the controller; it has one key, the ConfigMap.
func NewSigner(client kubernetes.Interface) *controller.Controller[string] {
	s := &signer{client: client, secrets: tokenSecrets(client)}
	s.info = coreinformers.NewFilteredConfigMapInformer(client, metav1.NamespacePublic, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", clusterInfo).String()
	})
	return &controller.Controller[string]{
		Name:      Signer,
		Feeds:     []func(context.Context, func(), func(string)) error{feed(func(metav1.Object) []string { return []string{clusterInfo} }, s.info, s.secrets)},
		Reconcile: s.reconcile,
	}
}

func (s *signer) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	obj, ok, err := s.info.GetStore().GetByKey(metav1.NamespacePublic + "/" + clusterInfo)
	if err != nil || !ok {
		return 0, err
	}
	have := obj.(*corev1.ConfigMap)
	kubeconfig := have.Data[kubeconfigKey]
	if kubeconfig == "" {
		return 0, nil // upstream's kubeadm writes it
	}
	var secrets []*corev1.Secret
	for _, o := range s.secrets.GetStore().List() {
		secrets = append(secrets, o.(*corev1.Secret))
	}
	data, next, err := sign(have.Data, secrets, time.Now())
	if err != nil || maps.Equal(data, have.Data) {
		return next, err
	}
	change := have.DeepCopy()
	change.Data = data
	_, err = s.client.CoreV1().ConfigMaps(metav1.NamespacePublic).Update(ctx, change, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return next, err
}

// sign is data with the kubeconfig's signature by each token that may sign, and
// without others'. next is when a token expires. Pure.
func sign(data map[string]string, secrets []*corev1.Secret, now time.Time) (signed map[string]string, next time.Duration, err error) {
	signed = maps.Clone(data)
	maps.DeleteFunc(signed, func(key, _ string) bool { return strings.HasPrefix(key, signaturePrefix) })
	for _, s := range secrets {
		id, secret, ok := signs(s, now)
		if !ok {
			continue
		}
		if _, in := expired(s, now); in > 0 && (next == 0 || in < next) {
			next = in
		}
		if signed[signaturePrefix+id], err = detached(data[kubeconfigKey], id, secret); err != nil {
			return nil, 0, err
		}
	}
	return signed, next, nil
}

// detached is a signature as RFC 7515, appendix F has it: its middle part, the
// content, is left out. The algorithm is HMAC with SHA-256.
func detached(content, id, secret string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": "HS256", "kid": id})
	if err != nil {
		return "", fmt.Errorf("sign cluster-info: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(encode(header) + "." + encode([]byte(content))))
	return encode(header) + ".." + encode(mac.Sum(nil)), nil
}
