.PHONY: setup train test test-all lint fix bench

setup:      ## make or update .venv
	./scripts/setup
train: setup ## the headline run: DQN with prioritized replay on CartPole-v1
	.venv/bin/python -m agilerl_exp algo=dqn buffer=per
test: setup ## the default tests
	./scripts/test
test-all: setup ## the long tests too
	./scripts/test -m ''
lint: setup ## style and types
	./scripts/lint
fix: setup  ## mend style
	./scripts/lint --fix
bench: setup ## benchmarks
	./scripts/bench
