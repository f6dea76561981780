package rig

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Image is the one that pods of benchmarks run: busybox alone.
const Image = "knarr.test/hello:1"

// TestImage makes its archive in dir.
func TestImage(ctx context.Context, p Programs, dir string) (string, error) {
	archive := filepath.Join(dir, "image.tar")
	out, err := exec.CommandContext(ctx, filepath.Join(p.Repository, "test", "tour", "image"), archive).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make the test image: %w: %s", err, out)
	}
	return archive, nil
}

// Load brings an archive to the cluster's node, and upstream's node the pause
// image that knarr has within.
func (c *Cluster) Load(p Programs, archive string) error {
	if c.ownNode {
		out, err := exec.Command(p.Knarr, "images", "load", "--data-dir", filepath.Join(c.Dir, "data"), archive).CombinedOutput()
		if err != nil {
			return fmt.Errorf("load %s: %w: %s", archive, err, out)
		}
		return nil
	}
	pause, err := pauseImage(p, c.Dir)
	if err != nil {
		return err
	}
	for _, a := range append([]string{pause, archive}, c.images...) {
		if err := c.importImage(p, a); err != nil {
			return err
		}
	}
	return nil
}

// NodeReady waits until a node is Ready.
func (c *Cluster) NodeReady(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.await(ctx, "a Ready node", func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("none of %d nodes is Ready", len(nodes.Items))
	})
}
