package cluster

import (
	"context"
	"fmt"
	"io"

	"k8s.io/client-go/tools/clientcmd"

	"knarr/addons/gateway/report"
)

// IngressReport writes what would change for the Ingresses of a cluster, this machine's or
// that of a kubeconfig, in a move from ingress-nginx.
func IngressReport(ctx context.Context, dir, kubeconfig string, w io.Writer) error {
	if kubeconfig == "" {
		kubeconfig = layout{dir}.kubeconfig()
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w; give --kubeconfig or --data-dir", kubeconfig, err)
	}
	return report.Write(ctx, cfg, w)
}
