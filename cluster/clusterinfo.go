package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/retry"
)

// The names are kubeadm's: programs look for them.
const (
	clusterInfoName = "cluster-info"
	clusterInfoKey  = "kubeconfig"
	clusterInfoRole = "kubeadm:bootstrap-signer-clusterinfo"
	// clusterInfoServer is the annotation with the address that a server of this cluster
	// wrote. Any other one in the ConfigMap is a user's.
	clusterInfoServer = "knarr.io/server"
)

// followPeriod is the time between two looks at whether the address that is published
// is still one of the cluster's.
const followPeriod = time.Minute

// clusterInfo is what the ConfigMap kube-public/cluster-info says of this cluster:
// where it is and which authority signs for it, so that who has a bootstrap token can
// tell it from others. It holds no secret: anybody may read it.
type clusterInfo struct {
	client kubernetes.Interface
	server string // its URL
	ca     *authority
}

// publishClusterInfo keeps the ConfigMap cluster-info; the bootstrap signer signs it.
func (s *Server) publishClusterInfo(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.registrar())
	if err != nil {
		return err
	}
	server := addressURL(s.opts.advertise.String(), s.opts.HTTPSListenPort)
	c := &clusterInfo{client, server, s.ca}
	if err := c.publish(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	c.follow(ctx)
	return nil
}

// publish makes the ConfigMap after the role that opens it. So where there is one, a
// role that is missing was taken away by a user, and stays away.
func (c *clusterInfo) publish(ctx context.Context) error {
	err := c.update(ctx)
	if apierrors.IsNotFound(err) {
		return c.create(ctx)
	}
	return err
}

// follow keeps what is published true until ctx ends: the server whose address it is
// may come back with another one, or not at all. A ConfigMap that a user removed stays
// away until the next start.
func (c *clusterInfo) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(followPeriod):
		}
		if err := c.update(ctx); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			slog.WarnContext(ctx, "keep cluster-info up to date", "err", err)
		}
	}
}

// update brings the ConfigMap up to date, if there is one.
func (c *clusterInfo) update(ctx context.Context) error {
	maps := c.client.CoreV1().ConfigMaps(metav1.NamespacePublic)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := maps.Get(ctx, clusterInfoName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the ConfigMap %s: %w", clusterInfoName, err)
		}
		from, err := c.left(ctx, have.Annotations[clusterInfoServer])
		if err != nil {
			return err
		}
		text, err := c.kubeconfig(have.Data[clusterInfoKey], from)
		if err != nil || text == have.Data[clusterInfoKey] {
			return err
		}
		if have.Data == nil {
			have.Data = map[string]string{}
		}
		have.Data[clusterInfoKey] = text
		if from != "" {
			have.Annotations[clusterInfoServer] = c.server
		}
		if _, err = maps.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bring the ConfigMap %s up to date: %w", clusterInfoName, err)
		}
		return nil
	})
}

// left is the address that was published, if no server of the cluster has it any more,
// and otherwise "".
func (c *clusterInfo) left(ctx context.Context, published string) (string, error) {
	if published == "" || published == c.server {
		return "", nil
	}
	slice, err := c.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the addresses of the servers: %w", err)
	}
	for _, e := range slice.Endpoints {
		for _, address := range e.Addresses {
			for _, p := range slice.Ports {
				if p.Port != nil && published == addressURL(address, int(*p.Port)) {
					return "", nil
				}
			}
		}
	}
	return published, nil
}

func addressURL(address string, port int) string {
	return "https://" + net.JoinHostPort(address, strconv.Itoa(port))
}

func (c *clusterInfo) create(ctx context.Context) error {
	text, err := c.kubeconfig("", "")
	if err != nil {
		return err
	}
	const ns = metav1.NamespacePublic
	meta := metav1.ObjectMeta{Namespace: ns, Name: clusterInfoRole}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{clusterInfoName}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.RoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: clusterInfoRole},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Anonymous}},
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: clusterInfoName, Annotations: map[string]string{clusterInfoServer: c.server}}, Data: map[string]string{clusterInfoKey: text}}
	for _, ensure := range []func() error{
		func() error {
			_, err := c.client.RbacV1().Roles(ns).Create(ctx, role, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.client.RbacV1().RoleBindings(ns).Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.client.CoreV1().ConfigMaps(ns).Create(ctx, info, metav1.CreateOptions{})
			return err
		},
	} {
		if err := ensure(); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("publish %s: %w", clusterInfoName, err)
		}
	}
	return nil
}

// kubeconfig is the kubeconfig to publish where there is have: a new one in the place
// of none, and otherwise what is there, with this cluster's authority in the place of
// one that it had before, and this server's address in that of from, where no server is
// any more. All else in it is a user's to change, such as the address of a load
// balancer before several servers. Pure.
func (c *clusterInfo) kubeconfig(have, from string) (string, error) {
	config := clientcmdapi.NewConfig()
	if have == "" {
		config.Clusters[""] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthorityData: c.ca.pem}
	} else {
		var err error
		if config, err = clientcmd.Load([]byte(have)); err != nil {
			return have, nil // a user's: who reads it will say what is wrong with it
		}
		stale := false
		for _, cluster := range config.Clusters {
			if cluster == nil {
				continue
			}
			if from != "" && cluster.Server == from {
				cluster.Server, stale = c.server, true
			}
			if c.stale(cluster) {
				cluster.CertificateAuthorityData, stale = c.ca.pem, true
			}
		}
		if !stale {
			return have, nil
		}
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", clusterInfoName, err)
	}
	return string(text), nil
}

// stale reports whether a cluster of a kubeconfig names authorities, but not this
// cluster's, though it means this cluster: by its address, or by an authority of the
// same name. Others are those of a user's load balancer, say.
func (c *clusterInfo) stale(in *clientcmdapi.Cluster) bool {
	if len(in.CertificateAuthorityData) == 0 {
		return false
	}
	authorities, err := certutil.ParseCertsPEM(in.CertificateAuthorityData)
	if err != nil {
		return false
	}
	named := in.Server == c.server
	for _, a := range authorities {
		if a.Equal(c.ca.cert) {
			return false
		}
		named = named || sameSubject(a, c.ca.cert)
	}
	return named
}

func sameSubject(a, b *x509.Certificate) bool { return bytes.Equal(a.RawSubject, b.RawSubject) }
