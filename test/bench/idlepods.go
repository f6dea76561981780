package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"knarr/test/bench/rig"
)

var idlePodsLines = []line{
	{"110 idle pods: memory of all processes but theirs, shared pages by share", "MB", false, 0},
	{"110 idle pods: CPU of all processes but theirs", "% of a core", false, 0},
	{"container exit to status seen on a watch, p50", "ms", false, 0},
	{"container exit to status seen on a watch, p99", "ms", false, 0},
}

const (
	// idlePods are as many as a node takes by default.
	idlePods = 110
	// exits are how many of their containers end, one after the other.
	exits = 100
	// idlePodsRest is for what their start left to do.
	idlePodsRest = 30 * time.Second
)

// runIdlePods measures a node full of pods that do nothing, and then how soon the end of
// a container is known.
func runIdlePods(ctx context.Context, r *run, c *rig.Cluster, client kubernetes.Interface) error {
	seen, stop := watchPods(ctx, client, fields.Everything(), podReady)
	defer stop()
	pods := client.CoreV1().Pods(namespace)
	n, ends := r.count(idlePods), r.count(exits)
	if _, _, err := each(ctx, clients, n, func(ctx context.Context, i int) error {
		_, err := pods.Create(ctx, sleepingPod(i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := seen.await(ctx, n); err != nil {
		return err
	}
	if err := pause(ctx, idlePodsRest); err != nil {
		return err
	}
	before := c.CPUOfNode()
	if err := pause(ctx, idleTime); err != nil {
		return err
	}
	r.put("110 idle pods: CPU of all processes but theirs", 100*(c.CPUOfNode()-before).Seconds()/idleTime.Seconds())
	share, err := c.Share()
	if err != nil {
		return err
	}
	r.put("110 idle pods: memory of all processes but theirs, shared pages by share", float64(share)/1e6)

	ended, stopEnded := watchPods(ctx, client, fields.Everything(), containerEnded)
	defer stopEnded()
	var took []time.Duration
	for i := range ends {
		pid, err := sleeper(i)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
		at, err := ended.when(ctx, ended.at, sleepingName(i))
		if err != nil {
			return err
		}
		took = append(took, at.Sub(began))
	}
	r.put("container exit to status seen on a watch, p50", quantile(took, 0.5))
	r.put("container exit to status seen on a watch, p99", quantile(took, 0.99))
	return errors.Join(removeAll(ctx, pods, seen, n), c.Alive())
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sleepingName(i int) string { return fmt.Sprintf("sleeping-%03d", i) }

// sleepingFor tells a pod's process from those of others.
func sleepingFor(i int) string { return strconv.Itoa(7_310_000 + i) }

// sleepingPod does nothing, and is not started again when it ends.
func sleepingPod(i int) *corev1.Pod {
	p := realPod(sleepingName(i))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers[0].Command = []string{"/bin/sleep", sleepingFor(i)}
	return p
}

// sleeper finds a pod's process.
func sleeper(i int) (int, error) {
	want := []byte("/bin/sleep\x00" + sleepingFor(i) + "\x00")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && bytes.Equal(b, want) {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, fmt.Errorf("the process of pod %s is not there", sleepingName(i))
}

func containerEnded(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Terminated != nil
}
