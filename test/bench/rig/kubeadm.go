package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubernetesDir is where kubeadm's manifests look for the components' kubeconfigs.
const kubernetesDir = "/etc/kubernetes"

const kubeadmConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %[1]s}
nodeRegistration: {name: %[2]s, criSocket: unix://%[3]s/containerd.sock}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
certificatesDir: %[4]s
networking: {podSubnet: %[5]s, serviceSubnet: %[6]s}
`

func (c *Cluster) manifests() string { return filepath.Join(c.Dir, "manifests") }

// Kubeadm has kubeadm write the manifests of these components of the control
// plane, and makes what they name: kubeconfigs, certificates and images, whose
// program is knarr. A node that AddKnarr starts runs them.
func (c *Cluster) Kubeadm(ctx context.Context, p Programs, components ...string) error {
	if err := c.kubeadmFiles(components); err != nil {
		return err
	}
	knarr, err := os.ReadFile(p.Knarr)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "kubeadm.yaml")
	if err := writeFile(config, fmt.Sprintf(kubeadmConfig, hostAddress(), NodeName, c.Dir, c.pki.dir, c.Pods, c.Services)); err != nil {
		return err
	}
	for _, name := range components {
		program := "kube-" + name
		image, err := writeImage(filepath.Join(c.Dir, program+".tar"), file{program, 0o755, knarr}, "", "registry.k8s.io/"+program+":v1.36.3")
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(p.Upstream, "kubeadm"), "init", "phase", "control-plane", name, "--config", config)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubeadm writes the manifest of %s: %w: %s", name, err, out)
		}
		c.images, c.static = append(c.images, image), append(c.static, program+"-"+NodeName)
	}
	return os.CopyFS(c.manifests(), os.DirFS(filepath.Join(kubernetesDir, "manifests")))
}

// kubeadmFiles makes what other phases of kubeadm would have made.
func (c *Cluster) kubeadmFiles(components []string) error {
	for _, end := range []string{"crt", "key"} {
		ca, err := os.ReadFile(c.pki.file("ca." + end))
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.pki.file("front-proxy-ca."+end), ca, 0o600); err != nil {
			return err
		}
	}
	if err := c.pki.issue("front-proxy-client", "front-proxy-client", nil, nil); err != nil {
		return err
	}
	for _, name := range components {
		path, err := c.pki.kubeconfig(c.Server, name, "system:kube-"+name)
		if err != nil {
			return err
		}
		config, err := clientcmd.LoadFromFile(path)
		if err != nil {
			return err
		}
		if err := clientcmdapi.FlattenConfig(config); err != nil {
			return err
		}
		if err := clientcmd.WriteToFile(*config, filepath.Join(kubernetesDir, name+".conf")); err != nil {
			return err
		}
	}
	return nil
}

// StaticPods waits until the pods of Kubeadm are ready, as their probes say.
func (c *Cluster) StaticPods(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, name := range c.static {
		err := c.await(ctx, name, func(ctx context.Context) error {
			pod, err := client.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, cond := range pod.Status.Conditions {
				if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("it is not ready: %v", pod.Status.ContainerStatuses)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
