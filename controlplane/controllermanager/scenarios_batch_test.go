package controllermanager

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// workers run pods to their end; those of index 1 fail.
func workers(c *cluster) {
	c.Helper()
	c.finish(func(p *corev1.Pod) int32 {
		if p.Labels[batchv1.JobCompletionIndexAnnotation] == "1" {
			return 1
		}
		return 0
	})
	c.bury()
}

const workTemplate = "template: {spec: {restartPolicy: Never, containers: [{name: c, image: a}]}}"

var batchScenarios = []scenario{
	{
		name: "job", of: []string{"job-controller"}, with: collected, world: workers, anew: batch + "jobs/work",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"jobs", "{metadata: {name: work}, spec: {completions: 3, parallelism: 2, "+workTemplate+"}}")
			},
		},
	},
	{
		name: "indexed job that fails", of: []string{"job-controller"}, with: collected, world: workers, quiet: 12 * time.Minute,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"jobs", "{metadata: {name: work}, spec: {completions: 3, parallelism: 3, completionMode: Indexed, backoffLimitPerIndex: 1, "+workTemplate+"}}")
			},
		},
	},
	{
		name: "job suspended, edited and deleted", of: []string{"job-controller"}, with: collected, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"jobs", "{metadata: {name: work}, spec: {parallelism: 2, "+workTemplate+"}}")
			},
			func(c *cluster) { c.merge(batch+"jobs/work", `{"spec":{"suspend":true}}`) },
			func(c *cluster) { c.merge(batch+"jobs/work", `{"spec":{"suspend":false,"parallelism":1}}`) },
			func(c *cluster) { c.remove(batch+"jobs/work", "Background") },
		},
	},
	{
		name: "job orphans its pods", of: []string{"job-controller"}, with: collected, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"jobs", "{metadata: {name: work}, spec: {parallelism: 2, "+workTemplate+"}}")
			},
			func(c *cluster) { c.remove(batch+"jobs/work", orphan) },
		},
	},
	{
		name: "ttl after finished", of: []string{"ttl-after-finished-controller"}, with: []string{"job-controller", "garbage-collector-controller"}, world: workers,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"jobs", "{metadata: {name: work}, spec: {ttlSecondsAfterFinished: 60, "+workTemplate+"}}")
				c.create(batch+"jobs", "{metadata: {name: kept}, spec: {ttlSecondsAfterFinished: 60, "+workTemplate+"}}")
			},
			func(c *cluster) {},
		},
	},
	{
		name: "cronjob", of: []string{"cronjob-controller"}, with: []string{"job-controller", "garbage-collector-controller"}, world: workers,
		quiet: 11 * time.Minute, inOrder: true, atRest: 60, recreates: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(batch+"cronjobs", "{metadata: {name: tick}, spec: {schedule: '*/10 * * * *', successfulJobsHistoryLimit: 1, jobTemplate: {spec: {"+workTemplate+"}}}}")
				for range 22 {
					time.Sleep(time.Minute)
					c.beat()
				}
				c.merge(batch+"cronjobs/tick", `{"spec":{"suspend":true}}`)
			},
			func(c *cluster) { c.remove(batch+"cronjobs/tick", "Foreground") },
		},
	},
}
