"""Every figure by name, with its title and caption."""

from __future__ import annotations

from fedbc.paper import figures, figures_studies, short
from fedbc.paper.catalogue import CLASSES, EPOCHS, WITH_MORE_ROUNDS
from fedbc.paper.drawing import Figure
from fedbc.paper.experiment import heading

FIGURES = {
    f.name: f
    for f in (
        Figure(
            "gains",
            "What FedBC's global model gains, over whom",
            "Mean over settings (in brackets how many of the paper's were run) and two standard errors over seeds, "
            "methods compared seed by seed; of three seeds, as on CIFAR-10, a t-test asks for 4.3 of them. What is "
            "left over weights √n_i is what the primal-dual method adds.",
            ("synthetic", "synthetic-draws", "synthetic-devices", "mnist-e1", "mnist-e5", "cifar10-e1", "cifar10-e5"),
            short.chart,
        ),
        Figure(
            "toy",
            "Consensus against beyond consensus",
            "Two devices with quadratic losses in the plane, 50 local steps a round. FedAvg settles away from the best "
            "global model z*. The smaller FedBC's gamma, the nearer z comes to z*, and the worse the local models are.",
            ("toy",),
            figures_studies.toy_example,
        ),
        Figure(
            "teaser",
            "Global and local accuracy against gamma",
            "Synthetic data, E = 5, dual_lr 0.01, gamma fixed and the same for all devices (0 at the left edge); mean "
            "and one standard deviation over seeds. Below, the devices that have a say in the server's mean.",
            ("synthetic-gamma",),
            figures.teaser,
        ),
        Figure(
            "train-loss",
            "Training loss for every E",
            "z on all training sets, first seed.",
            ("synthetic",),
            figures.synthetic_curves("global_loss", "training loss", log=True),
        ),
        Figure(
            "coefficients",
            "Coefficients of the round's smallest and largest device, by lambda and by size",
            "FedBC on the synthetic data, first seed; faint the rounds, bold their running mean over 15.",
            ("synthetic",),
            figures.coefficients("synthetic", "epochs", EPOCHS, "E", 2.7),
        ),
        Figure(
            "multipliers",
            "lambda against n_i at the end, and at rounds 1, 50, 100 and 200",
            "FedBC on the synthetic data, E = 5, first seed.",
            ("synthetic",),
            figures.multipliers,
        ),
        Figure(
            "variance",
            "Variance of accuracy over devices against E",
            "z on each device's own test set; mean and one standard deviation over seeds.",
            ("synthetic",),
            figures.against("synthetic", "epochs", EPOCHS, "accuracy_variance", 1e4, "variance over devices, %²", "E"),
        ),
        Figure(
            "users",
            "Accuracy of z on the round's smallest and largest device",
            "Synthetic data, first seed, every round: the smallest and the largest of the ten devices sampled.",
            ("synthetic",),
            figures.users,
        ),
        Figure(
            "devices",
            "Accuracy against the number of devices",
            "Synthetic data, E = 5, hyper-parameters chosen with 30 devices.",
            ("synthetic-devices",),
            figures.against(
                "synthetic-devices", "devices", (30, 70, 100), "global_accuracy", 100, "global accuracy, %", "devices"
            ),
        ),
        Figure(
            "controls",
            "How much of FedBC's gain is merely not weighting by size?",
            "Global accuracy less that of FedAvg weighted by size. Uniform weights are the control the paper lacks.",
            ("synthetic", "synthetic-draws"),
            figures.controls,
        ),
        Figure(
            "dual-rates",
            "FedBC's accuracy over its grid of rates",
            "The runs that rates were chosen by on the synthetic data, mean over their seeds; one that diverged "
            "counts 0.",
            ("synthetic",),
            figures.dual_rates,
        ),
        Figure(
            "cifar10-coefficients",
            "CIFAR-10: coefficients for C = 1, 2, 3",
            "Exponent 1.2, E = 5, first seed.",
            ("cifar10-coefficients",),
            figures.coefficients("cifar10-coefficients", "classes", CLASSES, "C", 3.2),
        ),
        Figure(
            "cifar10-variance",
            "CIFAR-10: variance of accuracy over devices against the exponent",
            "Paper protocol; points that were not run are missing.",
            ("cifar10-e1", "cifar10-e5"),
            figures.cifar_variance,
        ),
        Figure(
            "cifar10-rounds",
            "CIFAR-10: accuracy over three times the rounds, and the paper's numbers",
            f"{heading(WITH_MORE_ROUNDS)}, first seed, evaluated every five rounds; bold the running mean over nine.",
            ("cifar10-rounds",),
            figures.cifar_rounds,
        ),
        Figure(
            "partitions",
            "Examples on every device",
            "MNIST and CIFAR-10 on 20 devices by exponent; the synthetic data on 30, 70 and 100.",
            ("partitions",),
            figures_studies.partitions,
        ),
        Figure(
            "theorem",
            "The theorem's metric against T",
            "FedBC as Algorithm 1 has it (5 of 10 devices, each from its own x_i), full batches, multipliers within "
            "the bounds "
            "of the proofs; one quantity varied at a time.",
            ("theory",),
            figures_studies.theorem,
        ),
        Figure(
            "plateaus",
            "Where the metric ends, and the corollary's trade-off",
            "‖∇f(z)‖² in the mean of the last tenth of the rounds; right, the devices' own (1/T) Σ ‖∇f_i(x_i)‖² by "
            "gamma "
            "without the proofs' bounds.",
            ("theory",),
            figures_studies.plateaus,
        ),
        Figure(
            "epsilon",
            "Local steps against epsilon",
            "Steps until ‖∇L_i‖² <= epsilon on all of a device's data (one device of the synthetic data), SGD's median "
            "and range over five draws of batches of 10; dashed, the paper's O(1/epsilon) and O(1/epsilon²) through "
            "the right-most point.",
            ("epsilon",),
            figures_studies.steps_against_epsilon,
        ),
    )
}
