package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

var deployLines = []line{
	{"Deployment of 2,000 replicas to 2,000 pod objects", "/s", true, 8},
	{"deleting it in the foreground", "/s", true, 10},
}

// deployments are how many of them a side makes, in turn with the other.
const deployments = 3

// runDeploy has the controllers make a large Deployment's pods, and delete them.
func runDeploy(ctx context.Context, r *run) error {
	c, client, err := r.startPrepared(ctx, true)
	if err != nil {
		return err
	}
	defer c.Stop()
	seen, stop := watchPods(ctx, client, fields.Everything(), func(*corev1.Pod) bool { return true })
	defer stop()
	n := r.count(2000)
	var made, gone time.Duration
	for i := range deployments {
		if err := errors.Join(c.Rest(ctx), r.pass(ctx)); err != nil {
			return err
		}
		name := fmt.Sprintf("large-%d", i)
		began := time.Now()
		if _, err := client.AppsV1().Deployments(namespace).Create(ctx, largeDeployment(name, n), metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := seen.await(ctx, (i+1)*n); err != nil {
			return err
		}
		made += time.Since(began)
		if err := podsLeft(ctx, client, n); err != nil {
			return err
		}
		began = time.Now()
		if err := deleteInForeground(ctx, client, name); err != nil {
			return err
		}
		gone += time.Since(began)
		if err := podsLeft(ctx, client, 0); err != nil {
			return err
		}
	}
	r.put("Deployment of 2,000 replicas to 2,000 pod objects", float64(deployments*n)/made.Seconds())
	r.put("deleting it in the foreground", float64(deployments*n)/gone.Seconds())
	return nil
}

func largeDeployment(name string, n int) *appsv1.Deployment {
	template := pod("")
	labels := map[string]string{"app": name}
	replicas := int32(n)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec}}}
}

// podsLeft checks how many pods there are.
func podsLeft(ctx context.Context, client kubernetes.Interface, n int) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err == nil && len(list.Items) != n {
		err = fmt.Errorf("there are %d pods and should be %d", len(list.Items), n)
	}
	return err
}

// deleteInForeground returns once the Deployment, and so all it owns, is gone.
func deleteInForeground(ctx context.Context, client kubernetes.Interface, name string) error {
	foreground := metav1.DeletePropagationForeground
	api := client.AppsV1().Deployments(namespace)
	if err := api.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return err
	}
	w, err := api.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	limit := time.After(3 * time.Minute)
	for {
		select {
		case ev := <-w.ResultChan():
			if ev.Type == "DELETED" {
				return nil
			}
			if ev.Type == "" {
				return fmt.Errorf("the watch ended before the Deployment was gone")
			}
		case <-limit:
			return fmt.Errorf("the Deployment is not gone after 3 minutes")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
