package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var deployLines = []line{
	{"Deployment of 2,000 replicas to 2,000 pod objects", "/s", true, 8},
	{"deleting it in the foreground", "/s", true, 10},
}

// runDeploy has the controllers make a large Deployment's pods, and delete them.
func runDeploy(ctx context.Context, r *run) error {
	c, client, err := r.prepared(ctx, true)
	if err != nil {
		return err
	}
	defer c.Stop()
	seen, stop := watchPods(ctx, client, func(*corev1.Pod) bool { return true })
	defer stop()
	n := r.count(2000)
	replicas := int32(n)
	template := pod("")
	template.Name, template.Namespace = "", ""
	labels := map[string]string{"app": "bench"}
	began := time.Now()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec}}}
	if _, err := client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := seen.await(ctx, n); err != nil {
		return err
	}
	r.put("Deployment of 2,000 replicas to 2,000 pod objects", float64(n)/time.Since(began).Seconds())
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) != n {
		return fmt.Errorf("%d pods of a Deployment of %d", len(list.Items), n)
	}
	began = time.Now()
	foreground := metav1.DeletePropagationForeground
	if err := client.AppsV1().Deployments(namespace).Delete(ctx, "large", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return err
	}
	w, err := client.AppsV1().Deployments(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	limit := time.After(3 * time.Minute)
	for {
		select {
		case ev := <-w.ResultChan():
			if ev.Type != "DELETED" {
				if ev.Type == "" {
					return fmt.Errorf("the watch ended before the Deployment was gone")
				}
				continue
			}
		case <-limit:
			return fmt.Errorf("the Deployment is not gone after 3 minutes")
		case <-ctx.Done():
			return ctx.Err()
		}
		break
	}
	r.put("deleting it in the foreground", float64(n)/time.Since(began).Seconds())
	if list, err = client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}); err == nil && len(list.Items) > 0 {
		return fmt.Errorf("%d pods are left of a Deployment that is gone", len(list.Items))
	}
	return err
}
