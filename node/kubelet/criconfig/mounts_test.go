package criconfig

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// noFiles has a file of each kind.
type noFiles struct{}

func (noFiles) SubPath(context.Context, *corev1.Pod, string, string, int, string, string) (string, error) {
	return "/sub", nil
}
func (noFiles) HostsFile(*corev1.Pod, []string) (string, error) { return "/hosts", nil }
func (noFiles) MessageFile(*corev1.Pod, string) (string, error) { return "/message", nil }

// TestRelabelled: where there is SELinux, what is the pod's own gets its label, and nothing
// of the node's or of others.
func TestRelabelled(t *testing.T) {
	p := podtest.Pod("p", "c")
	c := &p.Spec.Containers[0]
	c.TerminationMessagePath = "/m"
	in := Inputs{Pod: p, Spec: c, Files: noFiles{}, Volumes: map[string]volume.Mounted{}}
	for _, v := range []volume.Mounted{
		{Kind: "kubernetes.io~secret", ReadOnly: true}, {Kind: "kubernetes.io~empty-dir"}, {Kind: "kubernetes.io~csi"}, {Kind: "kubernetes.io~csi", ReadOnly: true},
		{Kind: "kubernetes.io~host-path"}, {Kind: "kubernetes.io~nfs"}, {Kind: "kubernetes.io~local-volume"},
	} {
		name := strings.Repeat("v", len(in.Volumes)+1)
		in.Volumes[name] = v
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	for _, on := range []bool{true, false} {
		mounts, _, err := containerMounts(t.Context(), Node{SELinux: on}, in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []bool{true, true, true, false, false, false, true, true, true} {
			if got := mounts[i].SelinuxRelabel; got != (want && on) {
				t.Errorf("SELinux %v: %s is relabelled: %v", on, mounts[i].ContainerPath, got)
			}
		}
	}
}
