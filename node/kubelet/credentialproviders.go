package kubelet

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/credentialprovider"
)

// newCredentialProviders reads which plugins there are, if any.
func (k *Kubelet) newCredentialProviders() (err error) {
	if k.cfg.CredentialProviders == "" && k.cfg.CredentialProviderBinDir == "" {
		return nil
	}
	k.plugins, err = credentialprovider.New(credentialprovider.Config{
		File: k.cfg.CredentialProviders, BinDir: k.cfg.CredentialProviderBinDir,
		Account: func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
			return k.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Token: func(ctx context.Context, namespace, name string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			return k.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, r, metav1.CreateOptions{})
		},
		Ran: func(name string, took time.Duration, failed bool) {
			k.metrics.providerTook.WithLabelValues(name).Observe(took.Seconds())
			if failed {
				k.metrics.providerErrors.WithLabelValues(name).Inc()
			}
		},
	})
	if err != nil {
		return err
	}
	k.metrics.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_credential_provider_config_info", Help: "[ALPHA] Information about the last applied credential provider configuration with hash as label",
		ConstLabels: prometheus.Labels{"hash": k.plugins.Hash()},
	}, func() float64 { return 1 }))
	if k.cfg.ShareImages != nil {
		slog.Info("other nodes get no image from this one, since credential provider plugins may have been needed for any")
	}
	return nil
}
