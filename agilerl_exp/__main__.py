"""`python -m agilerl_exp`: the same door as the console script `agilerl-exp`. Must not know anything else."""

from agilerl_exp.app import main

if __name__ == "__main__":
    main()
